"""The capacity drill on the embedded engine: real server and controllers, played nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.capacity_drill import Drill, rehearse, wait_for_minimal_runtimes
from tests.harness.embedded import EmbeddedServer
from tests.harness.players import Players

pytestmark = pytest.mark.timeout(900)


@contextlib.contextmanager
def drilling(folder: Path) -> Iterator[Drill]:
    with EmbeddedServer.start(folder / "state", flags=()) as server:
        players = Players(server.rest())
        players.start()
        api = server.rest()

        def metrics() -> str:
            return api.get("/metrics").body.decode()

        try:
            yield Drill(api, players, metrics)
        finally:
            players.stop()


def test_what_is_lent_comes_back_and_then_nothing_moves(tmp_path: Path) -> None:
    with drilling(tmp_path) as drill:
        rehearse(drill)


def test_with_a_minimum_run_time_it_comes_back_at_the_reserved_time(tmp_path: Path) -> None:
    with drilling(tmp_path) as drill:
        wait_for_minimal_runtimes(drill)
