"""The capacity drill on a real control plane: scheduler and controllers as processes of their own,
plain nodes, played pods."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import rest
from tests.harness.capacity_drill import Drill, rehearse, wait_for_minimal_runtimes
from tests.harness.control_plane import ControlPlane
from tests.harness.parts import Part
from tests.harness.players import Players
from tests.harness.plugin import CRDS
from windlass.control.runtime import informers

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]


@contextlib.contextmanager
def drilling(folder: Path) -> Iterator[Drill]:
    with ControlPlane.start(crds=CRDS) as plane:
        api = plane.rest
        assert (
            api.post("/api/v1/namespaces", {"metadata": {"name": informers.NAMESPACE}}).status
            == 201
        )
        scheduler, controllers = (
            Part(plane.kubeconfig, folder, name) for name in ("scheduler", "controllers")
        )
        players = Players(rest.from_kubeconfig(plane.kubeconfig))
        players.start()
        try:
            yield Drill(api, players, scheduler.metrics)
        finally:
            players.stop()
            for part in (scheduler, controllers):
                part.process.stop()


def test_what_is_lent_comes_back_and_then_nothing_moves(
    kubernetes_binaries: Path, tmp_path: Path
) -> None:
    with drilling(tmp_path) as drill:
        rehearse(drill)


def test_with_a_minimum_run_time_it_comes_back_at_the_reserved_time(
    kubernetes_binaries: Path, tmp_path: Path
) -> None:
    with drilling(tmp_path) as drill:
        wait_for_minimal_runtimes(drill)
