"""Each acknowledgement, and each event sent to a watcher, follows the sync that made it safe.

Traced inside the server by powerloss.c: which write-ahead-log write carried which object, and when
each sync began and ended. Every sync is made slow, so an answer that does not wait for it comes
well before it ends.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.faults.disk import PowerSwitch
from tests.faults.driver import ACKNOWLEDGED, Campaign
from tests.faults.seeds import campaign_seed

LOG = "store.db-wal"
SYNC_SECONDS = 0.03
WRITES = 150


@dataclasses.dataclass(frozen=True)
class Trace:
    """Times in seconds on the clock that all processes share."""

    written: dict[str, float]
    """When the log was first written with each mark."""
    syncs: list[tuple[float, float]]

    @classmethod
    def read(cls, file: Path) -> Trace:
        written: dict[str, float] = {}
        syncs = []
        for line in file.read_text().splitlines():
            kind, *numbers, what = line.split()
            if kind == "W" and numbers[-1] == LOG:
                written.setdefault(what, int(numbers[0]) / 1e9)
            elif kind == "S" and what == LOG:
                syncs.append((int(numbers[0]) / 1e9, int(numbers[1]) / 1e9))
        return cls(written, syncs)

    def safe_since(self, mark: str) -> float:
        """When the first sync that began after the mark was written had ended."""
        at = self.written[mark]
        return min((end for begin, end in self.syncs if begin >= at), default=float("inf"))


async def early_answers(tmp_path: Path, module: str, synchronous: str = "") -> list[str]:
    """What was answered or sent before it was safe."""
    seed = campaign_seed()
    switch = PowerSwitch(tmp_path, module=module, seed=seed)
    switch.trace(tmp_path / "trace", sync_seconds=SYNC_SECONDS)
    if synchronous:
        switch.weaken(synchronous)
    with switch.server as server:
        server.launch()
        campaign = Campaign(
            server, server.kill, seed=seed, crashes=1, fewest_writes_between=WRITES,
            most_writes_between=WRITES,
        )  # fmt: skip
        await campaign.run()
    trace = Trace.read(tmp_path / "trace")
    answered = [o for o in campaign.operations if o.outcome == ACKNOWLEDGED and o.version]
    heard = [item for watched in campaign.watched for item in watched.heard.items()]
    assert len(answered) > WRITES / 2
    assert heard
    early = [f"answered: {o}" for o in answered if trace.safe_since(o.mark) > o.answered]
    return early + [f"told {mark}" for mark, at in heard if trace.safe_since(mark) > at]


async def test_no_answer_and_no_watch_event_comes_before_its_sync(tmp_path: Path) -> None:
    assert await early_answers(tmp_path, "windlass.server") == []


@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
async def test_the_trace_shows_answers_that_do_not_wait(tmp_path: Path, synchronous: str) -> None:
    """The proof that the test above can fail."""
    assert await early_answers(tmp_path, "tests.faults.unsafe_server", synchronous)
