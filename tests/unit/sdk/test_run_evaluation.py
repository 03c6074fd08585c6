"""Trials as runs: what happens when the driver's own requests fail."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import pytest

from windlass.kinds import codec
from windlass.kinds.types import run
from windlass.sdk import event_loop_thread
from windlass.sdk.tuning.evaluation import Broken
from windlass.sdk.tuning.run_evaluation import LABEL_STUDY, STARTED, RunEvaluation
from windlass.sdk.tuning.trials import Trial
from windlass.store import errors

TEMPLATE = {"metadata": {}, "spec": {"roles": [{"command": ["true"]}]}}


class Refusing:
    """A server that refuses lists, and fails in a way of its own on creation."""

    def __init__(self, lists: bool):
        self._lists = lists

    async def list(self, *_args, **_options):
        if self._lists:
            raise errors.Forbidden("no lists")
        raise errors.Unavailable("later")

    async def get(self, *_args, **_options):
        raise errors.NotFound("no run")

    async def create_raw(self, *_args, **_options):
        raise ValueError("not a run")


@pytest.mark.parametrize(("lists", "why"), [(True, "no lists"), (False, "later")])
def test_a_study_ends_when_its_runs_cannot_be_watched(lists, why):
    happenings = queue.Queue()
    client = SimpleNamespace(store=Refusing(lists), namespace="default")
    evaluation = RunEvaluation(TEMPLATE, "s", ("loss",), happenings.put, client=client)
    happened = happenings.get(timeout=30)
    assert isinstance(happened, Broken)
    assert why in str(happened.problem)
    evaluation.close(aborted=True)


def test_a_study_ends_when_a_run_cannot_be_made(monkeypatch):
    async def watch(_self):
        return

    monkeypatch.setattr(RunEvaluation, "_watch", watch)
    happenings = queue.Queue()
    client = SimpleNamespace(store=Refusing(True), namespace="default")
    evaluation = RunEvaluation(TEMPLATE, "s", ("loss",), happenings.put, client=client)
    evaluation.start(Trial(0, {"x": 1}))
    happened = happenings.get(timeout=30)
    assert isinstance(happened, Broken)
    evaluation.close(aborted=True)


class Runs:
    """A server with one run."""

    def __init__(self, found: run.Run):
        self.found: run.Run | None = found
        self.created: dict[str, Any] = {}

    async def get(self, *_args):
        if self.found is None:
            raise errors.NotFound("gone")
        return self.found

    async def delete(self, *_args):
        self.found = None

    async def create_raw(self, _kind, value):
        if self.found is not None:
            raise errors.AlreadyExists("there")
        self.created = {**value, "metadata": {**value["metadata"], "uid": "new"}}
        return self.created


def a_run(phase: str, started: int, study: str = "s") -> run.Run:
    return codec.from_dict(run.Run, {
        "metadata": {
            "name": "s-0", "namespace": "default", "uid": "old", "labels": {LABEL_STUDY: study},
            "annotations": {STARTED: str(started)},
        },
        "spec": {"roles": [{"name": "worker", "command": ["true"]}]},
        "status": {"phase": phase, "progress": {"metrics": {"loss": 1.0}}},
    })  # fmt: skip


@pytest.fixture
def begin(monkeypatch):
    """Starts trial 0, which began at second 7, where a run of its name exists."""

    async def watch(_self):
        return

    monkeypatch.setattr(RunEvaluation, "_watch", watch)
    template = {"metadata": {}, "spec": {"roles": [{"name": "worker", "command": ["true"]}]}}

    def start(found: run.Run) -> tuple[Runs, list[Any]]:
        runs, happened = Runs(found), []
        client = SimpleNamespace(store=runs, namespace="default")
        evaluation = RunEvaluation(template, "s", ("loss",), happened.append, client=client)
        event_loop_thread.call(evaluation._guarded(evaluation._start(Trial(0, {}, started=7))))
        evaluation.close(aborted=False)
        return runs, happened

    return start


def test_the_run_of_a_killed_program_is_continued(begin):
    runs, (ended,) = begin(a_run("Succeeded", 7))
    assert not runs.created
    assert ended.values == [1.0]


@pytest.mark.parametrize(("phase", "started"), [("Succeeded", 3), ("Stopped", 3), ("Stopped", 7)])
def test_a_result_of_a_deleted_study_is_not_that_of_the_trial(begin, phase, started):
    runs, happened = begin(a_run(phase, started))
    assert runs.created["metadata"]["annotations"][STARTED] == "7"
    assert not happened


@pytest.mark.parametrize("phase", ["Stopped", "Succeeded"])
def test_a_run_of_something_else_is_left_alone(begin, phase):
    runs, (broken,) = begin(a_run(phase, 7, "other"))
    assert runs.found is not None
    assert "is no trial of study s" in str(broken.problem)


def test_a_run_of_a_deleted_study_that_has_not_ended_is_left_alone(begin):
    runs, (broken,) = begin(a_run("Running", 3))
    assert runs.found is not None
    assert "windlass stop s-0" in str(broken.problem)
