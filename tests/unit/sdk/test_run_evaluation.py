"""Trials as runs: what happens when the driver's own requests fail."""

from __future__ import annotations

import queue
from types import SimpleNamespace

import pytest

from windlass.sdk.tuning.evaluation import Broken
from windlass.sdk.tuning.run_evaluation import RunEvaluation
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

    async def create(self, *_args, **_options):
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
