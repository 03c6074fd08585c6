"""What agents on a cluster report of their nodes: access, what is accepted, how long it counts."""

from __future__ import annotations

import msgspec
import pytest

from windlass.server.auth.identity import Identity
from windlass.server.platform.handlers.metrics_push import MOST_BYTES, StoredReports
from windlass.server.storage.interfaces import FRESH_SECONDS
from windlass.server.storage.metrics_memory import InMemoryNodeMetrics
from windlass.store import errors
from windlass.telemetry import usage_rates
from windlass.telemetry.usage_rates import ContainerRate, PodRate, Rates

NODE = "authentication.kubernetes.io/node-name"
TOLD = Rates(
    10.0, {"cpu": "1500m", "memory": "1Gi", usage_rates.key_of("gpu/0"): "370m"},
    {"u1": PodRate("red", "job", [ContainerRate("pod", {"cpu": "900m", "memory": "8Mi"})])},
)  # fmt: skip
REPORT = msgspec.json.encode(TOLD)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def agent(node: str) -> Identity:
    return Identity("system:serviceaccount:windlass-nodes:windlass-agent", (), None,
                    ((NODE, (node,)),))  # fmt: skip


async def test_the_last_word_of_each_node_counts_while_it_is_fresh() -> None:
    clock = Clock()
    told = StoredReports(InMemoryNodeMetrics(clock))
    await told.take(agent("n1"), "n1", REPORT)
    await told.take(agent("n1"), "n1", msgspec.json.encode(Rates(1.0, {"cpu": "1"}, {})))
    await told.take(agent("n2"), "n2", REPORT)
    assert (await told.rates())["n1"].node == {"cpu": "1"}
    assert (await told.rates())["n2"] == TOLD
    clock.now += FRESH_SECONDS - 1
    await told.take(agent("n2"), "n2", REPORT)
    clock.now += 2
    assert set(await told.rates()) == {"n2"}


@pytest.mark.parametrize(
    "caller", [agent("n2"), Identity("admin", ("system:masters",)), Identity("pod")]
)
async def test_no_agent_reports_about_another_node(caller: Identity) -> None:
    told = StoredReports(InMemoryNodeMetrics())
    with pytest.raises(errors.Forbidden, match="only the agent of node"):
        await told.take(caller, "n1", REPORT)
    assert await told.rates() == {}


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b'{"window": 1}', b"x" * (MOST_BYTES + 1),
        REPORT.replace(b"1500m", b"lots"), REPORT.replace(b"900m", b"-1"),
    ],
    ids=["empty", "list", "half", "vast", "no amount", "less than nothing"],
)  # fmt: skip
async def test_what_is_no_report_is_refused_and_changes_nothing(body: bytes) -> None:
    told = StoredReports(InMemoryNodeMetrics())
    with pytest.raises(errors.BadRequest):
        await told.take(agent("n1"), "n1", body)
    assert await told.rates() == {}


async def test_many_nodes_tell_more_rarely_but_within_the_ledgers_minute() -> None:
    told = StoredReports(InMemoryNodeMetrics())
    wanted = [await told.take(agent(f"n{n}"), f"n{n}", REPORT) for n in range(7000)]
    assert wanted[0] == wanted[900] == 10.0
    assert wanted[2999] == 30.0
    assert wanted[-1] == 60.0
