"""The capacity drill on the embedded engine: real server and controllers, played nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.drill import Drill, rehearse
from tests.harness.embedded import EmbeddedServer
from tests.harness.players import Players


@pytest.mark.timeout(900)
def test_what_is_lent_comes_back_and_then_nothing_moves(tmp_path: Path) -> None:
    with EmbeddedServer.start(tmp_path / "state", flags=()) as server:
        players = Players(server.rest())
        players.start()
        try:
            rehearse(Drill(server.rest(), players))
        finally:
            players.stop()
