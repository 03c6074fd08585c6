"""Devices of a real kubelet's plug-in, from what a Run asks for to what its status says it got."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import windlass
from tests.endtoend.engines import Embedded, only_with_images
from tests.harness import device_plugin
from tests.harness.waiting import until
from windlass.kinds.types import run

RESOURCE = "nvidia.com/gpu"
NAMES = [f"{RESOURCE}/GPU-{letter}" for letter in "abc"]
SMALL: dict[str, Any] = {"cpus": "100m", "memory": "64Mi"}


@pytest.fixture
def devices(engine: Embedded) -> Iterator[None]:
    """Three, on the node that takes pods."""
    cluster = only_with_images(engine, "there is no kubelet").platform.cluster
    ids = [name.removeprefix(f"{RESOURCE}/") for name in NAMES]
    with device_plugin.offering(cluster.nodes[0], cluster.plane.rest, RESOURCE, *ids):
        yield


def test_which_devices_the_kubelet_chose_is_in_the_status_and_whose_choice_it_was_where_it_matters(
    devices: None, client: windlass.Client
) -> None:
    one = client.run("sleep 1000", gpus=1, **SMALL)
    two = client.run("sleep 1000", gpus=2, **SMALL)

    def told(handle: windlass.RunHandle) -> run.RunStatus:
        until(lambda: handle.status.granted is not None, "its devices are told")
        return handle.status

    try:
        alone, pair = told(one), told(two)
        assert alone.granted is not None
        assert pair.granted is not None
        assert (list(alone.granted), list(pair.granted)) == (["worker/0"], ["worker/0"])
        held = alone.granted["worker/0"], pair.granted["worker/0"]
        assert tuple(map(len, held)) == (1, 2)
        assert sorted(held[0] + held[1]) == NAMES, "what the kubelet gave, each device once"
        assert alone.message == "1 running", "with one device there is nothing to choose by links"
        assert pair.message == "1 running; the node of each replica chose its devices"
    finally:
        for handle in (one, two):
            handle.stop()
            handle.wait(90)
