"""How many runs a user may have submitted in a queue: the next is refused, also of many at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.server.conftest import Served
from tests.unit.server.test_platform import cluster, run
from windlass.control.model import capabilities
from windlass.kinds.types import core

QUEUES = "/apis/windlass.dev/v1alpha1/queues"
RUNS = "/apis/windlass.dev/v1alpha1/namespaces/red/runs"


@pytest.fixture
async def limited(served: Served) -> Served:
    """Below `top`, which lets each user submit five, `red` lets each submit two and ada three."""
    await cluster(served)
    served.app.engine = capabilities.Engine.read(core.ConfigMap())
    limits = {"submitted": 2, "users": {"ada": {"submitted": 3}}}
    for name, spec in (
        ("top", {"userLimits": {"submitted": 5}}),
        ("red", {"parent": "top", "namespaces": ["red"], "userLimits": limits}),
        ("side", {"parent": "top"}),
    ):
        made = await served.call("POST", QUEUES, {"metadata": {"name": name}, "spec": spec})
        assert made.code == 201, made.body
    return served


def of(user: str, name: str, **spec: Any) -> dict[str, Any]:
    value = run(name, "1")
    value["spec"] |= {"user": user, **spec}
    return value


async def test_the_run_beyond_the_limit_is_refused_with_the_numbers(limited: Served) -> None:
    for number in range(2):
        assert (await limited.call("POST", RUNS, of("bob", f"b{number}"))).code == 201
    refused = await limited.call("POST", RUNS, of("bob", "b2"))
    assert refused.code == 403
    assert refused.body["message"] == (
        'runs.windlass.dev "b2" is forbidden: exceeded user limit: user bob has 2 runs in queue '
        "red that have not ended, of at most 2 submitted; wait until one ends, or stop one with "
        "`windlass stop`"
    )
    assert (await limited.call("POST", RUNS, of("cleo", "c0"))).code == 201, "another user"
    assert (await limited.call("DELETE", f"{RUNS}/b0")).code == 200
    for _ in range(100):  # as soon as the deletion was seen
        answer = await limited.call("POST", RUNS, of("bob", "b3"))
        if answer.code == 201:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("a place that came free was not given away")


async def test_of_many_at_once_no_more_are_let_in(limited: Served) -> None:
    answers = await asyncio.gather(
        *(limited.call("POST", RUNS, of("ada", f"a{number}")) for number in range(8))
    )
    assert sorted(answer.code for answer in answers) == [201] * 3 + [403] * 5


async def test_a_queue_above_counts_all_below_it(limited: Served) -> None:
    for number in range(3):
        assert (await limited.call("POST", RUNS, of("ada", f"a{number}"))).code == 201
    for number, code in ((3, 201), (4, 201), (5, 403)):
        value = of("ada", f"a{number}", queue="side")
        assert (await limited.call("POST", RUNS, value)).code == code


async def test_a_dry_run_takes_no_place(limited: Served) -> None:
    for number in range(4):
        answer = await limited.call("POST", f"{RUNS}?dryRun=All", of("bob", f"d{number}"))
        assert answer.code == 201
