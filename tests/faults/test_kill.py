"""kill -9 under load: nothing acknowledged is lost, no watcher is misled, versions only grow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import history
from tests.faults.driver import Campaign
from tests.faults.seeds import SOAK, campaign_seed
from tests.harness.embedded import EmbeddedServer

KILLS = 200 if SOAK else 8


@pytest.mark.soak
@pytest.mark.timeout(3600 if SOAK else 240)
async def test_nothing_acknowledged_is_lost_and_no_watcher_misled_by_kills(tmp_path: Path) -> None:
    seed = campaign_seed()
    with EmbeddedServer.start(tmp_path / "state") as server:
        campaign = Campaign(server, server.kill, seed=seed, crashes=KILLS)
        await campaign.run()
        server.stop()
    found = history.problems(campaign, server.state / "store.db")
    assert not found, f"WINDLASS_SEED={seed}\n" + "\n".join(found[:20])
    assert sum(watched.connections for watched in campaign.watched) > KILLS
