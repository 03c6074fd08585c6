"""Trials as runs of a command: gangs, devices and environments as of any run.

`$NAME` of a parameter in the command and in the variables is replaced by its value; the variable
WINDLASS_PARAMETERS has all of them as JSON. The job reports its metrics with `windlass.report`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from windlass.kinds.types import run
from windlass.sdk import event_loop_thread, run_builder, submission, watching
from windlass.sdk.async_client import AsyncClient
from windlass.sdk.tuning.evaluation import Broken, Ended, Happening, Reported
from windlass.sdk.tuning.trials import Trial
from windlass.store import errors

LABEL_STUDY = "windlass.dev/study"
LABEL_TRIAL = "windlass.dev/trial"
STARTED = "windlass.dev/trial-started"
"""Annotation: when the trial started. A study that was deleted and begun again has other times."""
_STEPS = ("step", "epoch", "iteration")
"""Metrics that say to which step a reported value belongs."""


_START_SECONDS = 5.0
"""How long an interrupted study waits for runs that are being created, to stop them, too."""


class RunEvaluation:
    def __init__(
        self,
        template: Mapping[str, Any],
        study: str,
        metrics: tuple[str, ...],
        happened: Callable[[Happening], None],
        *,
        client: AsyncClient,
    ) -> None:
        self._template = template
        self._study = study
        self._metrics = metrics
        self._happened = happened
        self._client = client
        self._active: dict[str, Trial] = {}
        self._pruned: set[int] = set()
        self._uids: dict[str, str] = {}
        self._starting: set[concurrent.futures.Future[None]] = set()
        self._watching = event_loop_thread.start(self._guarded(self._watch()))

    def run_name(self, trial: Trial) -> str:
        return f"{self._study}-{trial.number}"

    def start(self, trial: Trial) -> None:
        started = event_loop_thread.start(self._guarded(self._start(trial)))
        self._starting.add(started)
        started.add_done_callback(self._starting.discard)

    def close(self, *, aborted: bool) -> None:
        self._watching.cancel()
        if aborted:
            event_loop_thread.call(self._stop_all())

    async def _guarded(self, work: Awaitable[None]) -> None:
        """The study ends with the problem: otherwise it would wait for trials for ever."""
        try:
            await work
        except Exception as problem:
            self._happened(Broken(problem))

    async def _start(self, trial: Trial) -> None:
        name, store = self.run_name(trial), self._client.store
        self._active[name] = trial
        value = _filled(self._template, trial, name, self._study)
        try:
            with contextlib.suppress(errors.NotFound):
                found = await store.get(run.Run, name, self._client.namespace)
                if self._is_replaced(found, trial):
                    await self._remove(found)
            made = await self._created(value, trial)
        except Exception:
            self._active.pop(name, None)
            raise
        self._uids[name] = made.uid
        self._changed(made)

    def _is_replaced(self, found: run.Run, trial: Trial) -> bool:
        """A run that was stopped with the program that started it begins again. One of a deleted
        study of this name has other parameters: its result is not that of the trial."""
        if not self._is_of_study(found):
            return False
        stopped = found.status.phase == "Stopped" or found.spec.stop
        return stopped or (found.finished and not _is_of_trial(found, trial))

    def _is_of_study(self, found: run.Run) -> bool:
        return (found.metadata.labels or {}).get(LABEL_STUDY) == self._study

    async def _created(self, value: dict[str, Any], trial: Trial) -> run.Run:
        """The run of the trial; an existing one, if a program before this one has created it."""
        store, namespace = self._client.store, self._client.namespace
        value["metadata"]["namespace"] = namespace
        run_builder.mark(value)
        try:
            return await submission.create(store, value)
        except errors.AlreadyExists:
            found = await store.get(run.Run, self.run_name(trial), namespace)
            if not self._is_of_study(found):
                raise errors.Conflict(
                    f"run {found.name} exists and is no trial of study {self._study}; choose "
                    "another name for the study"
                ) from None
            if not _is_of_trial(found, trial):
                raise errors.Conflict(
                    f"run {found.name} is of an earlier study of this name and has not ended; stop "
                    f"it (windlass stop {found.name}), or choose another name"
                ) from None
            return found

    async def _remove(self, found: run.Run) -> None:
        with contextlib.suppress(errors.NotFound):
            await self._client.store.delete(run.Run, found.name, found.namespace)
            await watching.gone(self._client.store, found)

    async def _watch(self) -> None:
        stream = watching.changes(
            self._client.store, run.Run, self._client.namespace,
            label_selector=f"{LABEL_STUDY}={self._study}",
        )  # fmt: skip
        async with contextlib.aclosing(stream) as changes:
            async for change, current in changes:
                if change == "DELETED":
                    self._deleted(current)
                else:
                    self._changed(current)

    def _deleted(self, gone: run.Run) -> None:
        trial = self._active.get(gone.name)
        if trial is not None and self._uids.get(gone.name) == gone.uid:
            del self._active[gone.name]
            self._happened(Ended(trial.number, message="its run was deleted"))

    def _changed(self, current: run.Run) -> None:
        trial = self._active.get(current.name)
        if trial is None or self._uids.get(current.name) != current.uid:
            return
        if current.finished:
            del self._active[current.name]
            self._happened(self._outcome(trial, current))
        elif trial.number not in self._pruned:
            self._report(trial, current)

    def _report(self, trial: Trial, current: run.Run) -> None:
        metrics = _metrics(current)
        value = metrics.get(self._metrics[0])
        if value is None:
            return
        given = next((metrics[name] for name in _STEPS if name in metrics), None)
        step = len(trial.reports) if given is None else max(0, int(given))
        if given is None and trial.reports and value == trial.reports[max(trial.reports)]:
            return  # another part of the status changed

        def answer(prune: bool) -> None:
            if prune and trial.number not in self._pruned:
                self._pruned.add(trial.number)
                event_loop_thread.start(self._stop(current.name))

        self._happened(Reported(trial.number, step, value, answer))

    def _outcome(self, trial: Trial, ended: run.Run) -> Ended:
        if trial.number in self._pruned:
            return Ended(trial.number, pruned=True)
        if ended.status.phase != "Succeeded":
            status = ended.status
            return Ended(trial.number, message=f"{status.reason}: {status.message}"[:1000])
        found = _metrics(ended)
        missing = [name for name in self._metrics if name not in found]
        if missing:
            return Ended(
                trial.number,
                message=f"the job did not report {', '.join(missing)}; call "
                f"windlass.report({missing[0]}=...) in it",
            )
        return Ended(trial.number, [found[name] for name in self._metrics])

    async def _stop(self, name: str) -> None:
        with contextlib.suppress(errors.ApiError):
            await self._client.store.patch(
                run.Run, name, self._client.namespace, patch={"spec": {"stop": True}}
            )

    async def _stop_all(self) -> None:
        if starting := [asyncio.wrap_future(each) for each in list(self._starting)]:
            # Else a run would be created after the others were stopped.
            await asyncio.wait(starting, timeout=_START_SECONDS)
        await asyncio.gather(*(self._stop(name) for name in list(self._active)))


def _is_of_trial(found: run.Run, trial: Trial) -> bool:
    return (found.metadata.annotations or {}).get(STARTED) == str(trial.started)


def _metrics(current: run.Run) -> dict[str, float]:
    progress = current.status.progress
    return dict(progress.metrics or {}) if progress is not None else {}


def _filled(template: Mapping[str, Any], trial: Trial, name: str, study: str) -> dict[str, Any]:
    """The run of a trial: the template with the values of its parameters."""
    value = copy.deepcopy(dict(template))
    metadata = value.setdefault("metadata", {})
    metadata.pop("generateName", None)
    metadata["name"] = name
    metadata["labels"] = {
        **(metadata.get("labels") or {}), LABEL_STUDY: study, LABEL_TRIAL: str(trial.number)
    }  # fmt: skip
    metadata["annotations"] = {
        **(metadata.get("annotations") or {}), STARTED: str(trial.started)
    }  # fmt: skip
    names = "|".join(map(re.escape, sorted(trial.params, key=len, reverse=True)))
    pattern = re.compile(rf"\$(?:\{{({names})\}}|({names})(?![A-Za-z0-9_]))")

    def fill(text: str) -> str:
        return pattern.sub(lambda found: str(trial.params[found[1] or found[2]]), text)

    for role in value["spec"]["roles"]:
        role["command"] = [fill(word) for word in role.get("command") or ()]
        variables = {key: fill(each) for key, each in (role.get("env") or {}).items()}
        role["env"] = {
            **variables, "WINDLASS_STUDY": study, "WINDLASS_TRIAL": str(trial.number),
            "WINDLASS_PARAMETERS": json.dumps(trial.params),
        }  # fmt: skip
    return value
