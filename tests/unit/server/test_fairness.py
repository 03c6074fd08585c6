"""Seats and queues: whose request executes next, and which one is refused."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest

from windlass.server.auth.identity import AUTHENTICATED, MASTERS, NODES, Identity, PodRef
from windlass.server.fairness import levels, settings
from windlass.server.fairness.queues import Flow, RequestQueues
from windlass.server.fairness.settings import LevelLimits, Settings
from windlass.store import errors
from windlass.telemetry.prometheus import Registry


def queues(**limits: int) -> RequestQueues:
    chosen = {"seats": 4, "user_seats": 2, "burst": 1, "queue": 100, "wait_seconds": 60,
              "watches": 3, "connections": 3} | limits  # fmt: skip
    return RequestQueues(Registry(), Settings({"members": LevelLimits(**chosen)}))


class Work:
    """Requests whose starts are noted, and which end when the test says so."""

    def __init__(self, made: RequestQueues) -> None:
        self.queues = made
        self.started: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._ends: dict[str, list[asyncio.Event]] = {}

    def request(self, user: str) -> asyncio.Task[None]:
        task = asyncio.create_task(self._run(self.queues.flow("members", user)))
        self._tasks.append(task)
        return task

    async def end(self, user: str) -> None:
        self._ends[user].pop(0).set()
        await settled()

    async def end_all(self) -> None:
        while any(not task.done() for task in self._tasks):
            for waiting in self._ends.values():
                for event in waiting:
                    event.set()
            await settled()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, flow: Flow) -> None:
        await self.queues.enter(flow)
        self.started.append(flow.name)
        event = asyncio.Event()
        self._ends.setdefault(flow.name, []).append(event)
        try:
            await event.wait()
        finally:
            self.queues.leave(flow)


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_user_behind_another_ones_thousand_requests_is_next() -> None:
    work = Work(queues(seats=1, user_seats=1, queue=2000))
    for _ in range(1000):
        work.request("flood")
    await settled()
    work.request("quiet")
    await settled()
    assert work.started == ["flood"]
    await work.end("flood")
    assert work.started == ["flood", "quiet"]
    await work.end_all()
    assert work.started.count("flood") == 1000


async def test_busy_users_take_turns() -> None:
    work = Work(queues(seats=1, user_seats=1))
    for user in ("a", "b", "c"):
        for _ in range(4):
            work.request(user)
    await work.end_all()
    for turn in range(0, 12, 3):
        assert sorted(work.started[turn : turn + 3]) == ["a", "b", "c"]


async def test_one_user_leaves_requests_of_others_their_turn() -> None:
    work = Work(queues(seats=4, user_seats=2))
    for _ in range(10):
        work.request("flood")
    await settled()
    assert work.started == ["flood", "flood"]
    work.request("quiet")
    await settled()
    assert work.started[-1] == "quiet"
    await work.end_all()


async def test_one_waiting_request_starts_in_each_pass_of_the_loop() -> None:
    made = queues(seats=100, user_seats=100)
    work = Work(made)
    for _ in range(20):
        work.request("flood")
    counts = []
    for _ in range(30):
        await asyncio.sleep(0)
        counts.append(made.levels["members"].executing)
    steps = [after - before for before, after in itertools.pairwise(counts)]
    assert counts[-1] == 20
    assert max(steps[1:]) <= 1
    await work.end_all()


async def test_a_caller_that_is_gone_is_forgotten_while_others_wait() -> None:
    made = queues(seats=1)
    work = Work(made)
    work.request("once")
    await settled()
    for _ in range(3):
        work.request("busy")
    await settled()
    await work.end("once")
    assert made.levels["members"].waiting
    assert set(made.levels["members"].flows) == {"busy"}
    await work.end_all()


async def test_a_full_queue_refuses_only_its_user() -> None:
    work = Work(queues(queue=3))
    refused = [work.request("flood") for _ in range(10)]
    await settled()
    outcomes = [task.exception() for task in refused if task.done()]
    assert len(outcomes) == 10 - 1 - 3  # one executes, three wait
    for problem in outcomes:
        assert isinstance(problem, errors.TooManyRequests)
        assert problem.retry_after
        assert "raise members.queue in ConfigMap windlass-system/server-limits" in problem.message
    work.request("quiet")
    await settled()
    assert work.started[-1] == "quiet"
    await work.end_all()


async def test_a_request_that_waits_too_long_is_refused() -> None:
    made = queues(seats=1, wait_seconds=0)
    work = Work(made)
    work.request("slow")
    await settled()
    late = work.request("quiet")
    with pytest.raises(errors.TooManyRequests, match=r"members\.waitSeconds"):
        await late
    assert made.levels["members"].waiting == 0
    await work.end_all()


async def test_nothing_is_left_of_clients_that_went_away() -> None:
    made = queues(seats=2, user_seats=1)
    work = Work(made)
    tasks = [work.request(user) for user in ("a", "b", "c") for _ in range(5)]
    await settled()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    level = made.levels["members"]
    assert (level.executing, level.waiting, level.flows) == (0, 0, {})
    work.request("d")
    await settled()
    assert work.started[-1] == "d"
    await work.end_all()


async def test_a_grant_to_a_client_that_went_away_in_the_same_pass_is_given_on() -> None:
    made = queues(seats=1, user_seats=1)
    work = Work(made)
    work.request("a")
    await settled()
    gone, waits = work.request("b"), work.request("c")
    await settled()
    work._ends["a"].pop().set()
    while made.levels["members"].waiting == 2:
        await asyncio.sleep(0)
    gone.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await gone
    await settled()
    assert work.started[-1] == "c"
    assert not waits.done()
    await work.end_all()


async def test_streams_have_a_limit_of_their_own() -> None:
    made = queues(watches=2)
    flow = made.flow("members", "alice")
    made.open_stream(flow)
    made.open_stream(flow)
    with pytest.raises(errors.TooManyRequests, match=r"alice has 2 watches .* members\.watches"):
        made.open_stream(flow)
    made.close_stream(flow)
    made.open_stream(flow)


async def test_lower_limits_take_effect_and_higher_ones_start_what_waits() -> None:
    made = queues(seats=1)
    work = Work(made)
    for user in ("a", "b"):
        work.request(user)
    await settled()
    assert work.started == ["a"]
    made.apply({"members": LevelLimits(2, 1, 1, 10, 60, 1, 1)})
    await settled()
    assert work.started == ["a", "b"]
    await work.end_all()


CALLERS = {
    "agent": (Identity("system:node:one", (NODES,)), "system"),
    "controller": (Identity("system:serviceaccount:windlass-system:controller"), "system"),
    "owner": (Identity("admin", (MASTERS, AUTHENTICATED)), "administrators"),
    "member": (Identity("alice", (AUTHENTICATED,)), "members"),
    "a team's account": (Identity("system:serviceaccount:team:bot"), "members"),
    "a name like an agent's": (Identity("system:node:one"), "members"),
    "pod": (Identity("system:node:one", (NODES,), PodRef("team", "p", "u")), "jobs"),
}


@pytest.mark.parametrize(("identity", "level"), CALLERS.values(), ids=CALLERS)
def test_the_level_of_a_caller(identity: Identity, level: str) -> None:
    assert levels.of(identity)[0] == level


def test_pods_of_one_team_are_one_caller() -> None:
    pods = [Identity("", pod=PodRef("team", name, name)) for name in ("a", "b")]
    assert len({levels.of(each) for each in pods}) == 1


def test_limits_are_read_from_a_config_map() -> None:
    found, problems = settings.read(
        {"members.watches": "12", "members.userSeats": "3", "namespace.uploadBytes": "5Gi",
         "user.tokens": "7", "members.speed": "1", "jobs.seats": "many", "jobs.queue": "0"}
    )  # fmt: skip
    assert (found.levels["members"].watches, found.levels["members"].user_seats) == (12, 3)
    assert found.namespace.upload_bytes == 5 << 30
    assert found.tokens == 7
    assert found.levels["jobs"] == settings.LEVELS["jobs"]
    assert [each.partition(" ")[0].rstrip(":") for each in problems] == [
        "jobs.queue", "jobs.seats", "members.speed",
    ]  # fmt: skip
    assert settings.read(None) == (settings.DEFAULTS, [])
