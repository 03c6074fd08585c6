"""What deciding leads to when everybody who is told to go goes at once and nothing else happens.

For questions such as "who would be stopped if this queue had more": the same `decide`, round after
round on a copy, until nothing moves any more. Pure; the snapshot that is asked about stays as it
is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from windlass.core import cycle, state
from windlass.core.facts import Decision, Policy, Queue, Running, Seat
from windlass.core.queues import Sums

ROUNDS = 24


@dataclasses.dataclass(frozen=True, slots=True)
class Forecast:
    """How the world is then, against how it was."""

    started: tuple[str, ...]
    stopped: tuple[str, ...]
    shrunk: dict[str, int]
    """Unit -> members that it gives and has not got back."""
    gainers: dict[str, str]
    """Unit that had to give -> unit that it gave to first."""
    guarantee: dict[str, Sums]
    """Queue -> what it is guaranteed, after shrinking to what there is."""
    used: dict[str, Sums]
    rounds: int
    settled: bool
    """Nothing moved in the last round."""


def settle(
    snapshot: state.Snapshot,
    now: float,
    policy: Policy,
    queues: Iterable[Queue] | None = None,
    rounds: int = ROUNDS,
) -> Forecast:
    """From the snapshot as it is; with these queues instead of its own, if given."""
    facts = snapshot.facts()
    if queues is not None:
        facts = dataclasses.replace(facts, queues=tuple(queues))
    world = state.build(facts)
    before = {key: len(each.seats) for key, each in world.running.items()}
    waited = set(world.waiting)
    gainers: dict[str, str] = {}
    done, settled = 0, False
    while done < rounds and not settled:
        decision = cycle.decide(world, now, policy)
        done += 1
        for eviction in decision.evictions:
            gainers.setdefault(eviction.unit, eviction.gainer)
        settled = not _happen(world, decision, now)
    after = {key: len(each.seats) for key, each in world.running.items()}
    return Forecast(
        started=tuple(sorted(key for key in waited if key in after)),
        stopped=tuple(sorted(key for key in before if key not in after)),
        shrunk={key: n - after[key] for key, n in before.items() if 0 < after.get(key, 0) < n},
        gainers=gainers,
        guarantee={name: dict(sums) for name, sums in world.tree.guarantee.items()},
        used={name: dict(sums) for name, sums in world.tree.used.items()},
        rounds=done,
        settled=settled,
    )


def _happen(world: state.Snapshot, decision: Decision, now: float) -> bool:
    """Carries a decision out; whether that moved anybody."""
    going: dict[str, set[tuple[str, int]]] = {}
    for key, running in world.running.items():
        if running.leaving:
            going[key] = set(running.leaving)
    for eviction in decision.evictions:
        going.setdefault(eviction.unit, set()).update(eviction.seats)
    events: list[state.Event] = []
    for placement in decision.placements:
        events.append(state.NominationGone(placement.unit))
        events.append(state.Holds(_placed(world, placement.unit, placement.seats, now)))
    events += [state.Nominated(each) for each in decision.nominations]
    for key, seats in going.items():
        events += _gone(world.running[key], seats)
    events.append(state.Promised(decision.reservations))
    state.apply(world, events)
    return bool(decision.placements or going)


def _placed(world: state.Snapshot, key: str, seats: tuple[Seat, ...], now: float) -> Running:
    known = world.running.get(key)
    if known is not None:
        return dataclasses.replace(known, seats=(*known.seats, *seats))
    unit = world.waiting[key]
    queue = world.queues.get(unit.queue)
    return Running(unit, seats, now, protected_until=now + queue.min_runtime if queue else 0.0)


def _gone(running: Running, seats: set[tuple[str, int]]) -> list[state.Event]:
    left = tuple(seat for seat in running.seats if (seat.role, seat.index) not in seats)
    if left:
        return [state.Holds(dataclasses.replace(running, seats=left, leaving=()))]
    if running.unit.kin is None:
        return [state.Gone(running.unit.key)]  # somebody else's pod: it does not queue here
    return [state.Waits(running.unit)]
