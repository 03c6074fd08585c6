"""The power fails under load, on a disk that forgets what was not synced."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import history
from tests.faults.disk import PowerSwitch
from tests.faults.driver import Campaign
from tests.faults.seeds import SOAK, campaign_seed
from tests.harness.processes import StartError

CUTS = 100 if SOAK else 6

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600 if SOAK else 240)]


async def test_nothing_acknowledged_or_watched_is_lost_when_the_power_fails(tmp_path: Path) -> None:
    seed = campaign_seed()
    switch = PowerSwitch(tmp_path, seed=seed)
    with switch.server as server:
        server.launch()
        campaign = Campaign(server, switch.cut, seed=seed, crashes=CUTS)
        await campaign.run()
        server.stop()
    found = history.problems(campaign, server.state / "store.db")
    assert not found, f"WINDLASS_SEED={seed}\n" + "\n".join(found[:20])


@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
async def test_the_same_disk_shows_the_loss_when_the_store_does_not_sync(
    tmp_path: Path, synchronous: str
) -> None:
    """The proof that the test above can fail."""
    seed = campaign_seed()
    switch = PowerSwitch(tmp_path, module="tests.faults.unsafe_server", seed=seed)
    switch.weaken(synchronous)
    campaign = Campaign(switch.server, switch.cut, seed=seed, crashes=2, watchers=0)
    with switch.server as server:
        server.launch()
        try:
            await campaign.run()
        except StartError:
            return  # the store could not even be opened again
        server.stop()
    found = history.problems(campaign, server.state / "store.db")
    assert any("is lost" in problem for problem in found), found[:20]


async def test_the_authority_and_the_admins_token_survive_once_the_server_answered(
    tmp_path: Path,
) -> None:
    """A kubeconfig that was handed out still works after the power failed."""
    switch = PowerSwitch(tmp_path)
    with switch.server as server:
        server.launch()
        before = server.kubeconfig.read_text()
        switch.cut()
        server.launch()
        assert server.kubeconfig.read_text() == before
