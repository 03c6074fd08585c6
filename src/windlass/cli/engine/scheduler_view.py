"""The scheduler's view of a cluster, read through the API.

`windlass export-state` and `windlass debug-dump` write it; `windlass simulate --state` reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from windlass.cli.lib import client_session

if TYPE_CHECKING:
    from windlass.kinds.types.meta import Object
    from windlass.sim.inputs.state_export import Export

T = TypeVar("T", bound="Object")
_PAGE = 500


async def read(session: client_session.Session) -> Export:
    """As a new scheduler leader: lists all objects, and handles each as added."""
    from windlass.control.scheduler.cache import cache
    from windlass.kinds.types import core, queue, reservation
    from windlass.kinds.types.run import Run
    from windlass.kinds.values import times
    from windlass.sim.inputs import state_export

    seen = cache.SchedulerCache()
    for node in await _all(session, core.Node):
        seen.on_node("ADDED", None, node)
    for each in await _all(session, queue.Queue):
        seen.on_queue("ADDED", None, each)
    for reserved in await _all(session, reservation.Reservation):
        seen.reservations.on_change("ADDED", None, reserved)
    for owner in await _all(session, Run):
        seen.on_run("ADDED", None, owner)
    for pod in await _all(session, core.Pod):
        seen.on_pod("ADDED", None, pod)
    now = times.now().timestamp()
    snapshot = seen.apply_changes(seen.drain_changes(now))
    return state_export.taken(snapshot, now)


async def _all(session: client_session.Session, kind: type[T]) -> list[T]:
    found: list[T] = []
    token = ""
    while True:
        page = await session.store.list(kind, limit=_PAGE, continue_token=token)
        found += page.items
        token = page.continue_token
        if not token:
            return found
