"""Pods that the engine will never run get a condition and an event with the reason."""

from __future__ import annotations

import pytest

from tests.unit.control import build
from windlass.control.model import capabilities
from windlass.control.pods.refused_pods import RefusedPods
from windlass.control.runtime.informers import InformerFactory
from windlass.kinds.annotations import HOST_IMAGE
from windlass.kinds.types import core, meta

ALONE = capabilities.Engine(images=False, other_schedulers=False)


async def reported(store, pod: core.Pod, engine=ALONE, times: int = 1):
    """The condition's message and the events, after so many reconciliations."""
    made = await store.create(pod)
    if pod.status.phase == "Failed":
        status = {"phase": "Failed", "reason": pod.status.reason, "message": pod.status.message}
        await store.patch(
            core.Pod, made.name, made.namespace, patch={"status": status}, subresource="status"
        )
    for _ in range(times):
        seen = InformerFactory(store)
        controller = RefusedPods(store, seen.pods, lambda: engine)
        async with seen:
            await seen.pods.synced()
            await controller.reconcile((made.namespace, made.name))
    found = await store.get(core.Pod, made.name, made.namespace)
    messages = [c.message for c in found.status.conditions or () if c.type == "PodScheduled"]
    events = (await store.list(core.Event, made.namespace)).items
    return messages, [(each.reason, each.message) for each in events]


def a_pod(image: str = "nginx", scheduler: str = "", **status) -> core.Pod:
    container = core.Container(name="c", image=image)
    spec = core.PodSpec(containers=[container], scheduler_name=scheduler)
    about = meta.ObjectMeta(name="p", namespace=build.NAMESPACE)
    return core.Pod(metadata=about, spec=spec, status=core.PodStatus(**status))


async def test_a_pod_for_a_scheduler_that_is_not_there_says_so_once(store):
    messages, events = await reported(store, a_pod(), times=3)
    (message,) = messages
    assert "no scheduler named default-scheduler runs here" in message
    assert "spec.schedulerName: windlass" in message
    assert "not images (nginx)" in message
    assert events == [("FailedScheduling", message)]


async def test_a_pod_of_the_machines_own_files_gets_no_message_about_images(store):
    messages, _ = await reported(store, a_pod(image=HOST_IMAGE, scheduler="other"))
    (message,) = messages
    assert "no scheduler named other" in message
    assert "images" not in message


async def test_the_refusal_of_a_node_is_an_event(store):
    pod = a_pod(scheduler="windlass", phase="Failed", reason="ImageNotSupported", message="no")
    assert (await reported(store, pod))[1] == [("FailedToStart", "ImageNotSupported: no")]


@pytest.mark.parametrize(
    ("pod", "engine"),
    [
        (a_pod(), capabilities.Engine()),
        (a_pod(scheduler="windlass"), ALONE),
        (a_pod(scheduler="windlass", phase="Failed", reason="Error", message="m"), ALONE),
    ],
    ids=["others report", "Windlass places it", "it ran"],
)
async def test_other_pods_get_no_report(store, pod, engine):
    assert await reported(store, pod, engine) == ([], [])
