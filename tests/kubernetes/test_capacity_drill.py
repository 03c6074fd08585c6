"""The capacity drill on a real control plane: scheduler and controllers as processes of their own,
plain nodes, played pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import rest
from tests.harness.control_plane import ControlPlane
from tests.harness.drill import Drill, rehearse
from tests.harness.parts import Part
from tests.harness.players import Players
from tests.harness.plugin import CRDS
from windlass.control import views

pytestmark = pytest.mark.kubernetes


@pytest.mark.timeout(900)
def test_what_is_lent_comes_back_and_then_nothing_moves(
    kubernetes_binaries: Path, tmp_path: Path
) -> None:
    with ControlPlane.start(crds=CRDS) as plane:
        api = plane.rest
        assert api.post("/api/v1/namespaces", {"metadata": {"name": views.NAMESPACE}}).status == 201
        parts = [Part(plane.kubeconfig, tmp_path, name) for name in ("scheduler", "controllers")]
        players = Players(rest.from_kubeconfig(plane.kubeconfig))
        players.start()
        try:
            rehearse(Drill(api, players))
        finally:
            players.stop()
            for part in parts:
                part.process.stop()
