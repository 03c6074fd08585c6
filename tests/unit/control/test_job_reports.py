"""What a job reports reaches its Run: not too often, not if it is nonsense, and to the last."""

import contextlib

from tests.harness.waiting import until_async
from tests.unit.control import build
from tests.unit.control.test_runs import KEY, all_pods, assign, phase, report, submit
from windlass.control.model import pod_indexes
from windlass.control.runs import controller, progress
from windlass.kinds.types import core, run
from windlass.store.informer import Informer


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@contextlib.asynccontextmanager
async def running(store, clock):
    """A run whose only pod runs, and its controller."""
    pods = Informer(store, core.Pod, indexes={pod_indexes.BY_RUN: pod_indexes.run_uid})
    async with pods:
        await pods.synced()
        made = controller.Runs(store, pods, lambda: 1, clock=clock)
        await submit(store)
        await assign(store)
        await made.reconcile(KEY)
        (pod,) = await all_pods(store)
        await report(store, pod, "Running")
        await until_async(lambda: [each.status.phase for each in pods] == ["Running"])
        await made.reconcile(KEY)
        assert await phase(store) == "Running"
        yield made, pods


async def says(store, pods, text: str) -> None:
    (pod,) = await all_pods(store)
    annotations = {progress.ANNOTATION: text}
    await store.patch(
        core.Pod, pod.name, pod.namespace, patch={"metadata": {"annotations": annotations}}
    )
    await until_async(
        lambda: [p.metadata.annotations.get(progress.ANNOTATION) for p in pods] == [text]
    )  # fmt: skip


async def told(store) -> run.Progress | None:
    return (await store.get(run.Run, "job", build.NAMESPACE)).status.progress


async def test_progress_is_written_at_most_every_ten_seconds(store):
    clock = Clock()
    async with running(store, clock) as (made, pods):
        await says(store, pods, '{"fraction": 0.1, "metrics": {"loss": 2, "old": 1}}')
        await made.reconcile(KEY)
        assert await told(store) == run.Progress(fraction=0.1, metrics={"loss": 2, "old": 1})
        clock.now = 4.0
        await says(store, pods, '{"fraction": 0.2, "metrics": {"loss": 1}}')
        result = await made.reconcile(KEY)
        assert (await told(store)).fraction == 0.1
        assert result.after is not None
        assert 5.9 < result.after < 6.1
        clock.now = 10.0
        await made.reconcile(KEY)
        assert await told(store) == run.Progress(fraction=0.2, metrics={"loss": 1})


async def test_the_last_word_comes_with_the_end_however_soon(store):
    async with running(store, Clock()) as (made, pods):
        await says(store, pods, '{"fraction": 0.1}')
        await made.reconcile(KEY)
        await says(store, pods, '{"fraction": 1}')
        (pod,) = await all_pods(store)
        await report(store, pod, "Succeeded", 0)
        await until_async(lambda: [each.status.phase for each in pods] == ["Succeeded"])
        await made.reconcile(KEY)
        assert await phase(store) == "Succeeded"
        assert await told(store) == run.Progress(fraction=1.0)


async def test_nonsense_is_ignored_and_logged_once(store):
    async with running(store, Clock()) as (made, pods):
        for text in ("x", '{"fraction": 7}'):
            await says(store, pods, text)
            await made.reconcile(KEY)
        assert await told(store) is None
        events = (await store.list(core.Event, build.NAMESPACE)).items
        assert sorted(event.reason for event in events) == ["ProgressIgnored", "Started"]
