"""Whether a limit of its user keeps a workload waiting, beside what is reserved for that user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windlass.core.decision.state import DecisionState
from windlass.core.model.pod_sets import PodSetRequest
from windlass.core.model.types import Verdict, Workload
from windlass.core.quota import device_models
from windlass.core.quota.quota_tree import Shortage
from windlass.core.reservation import backfill, overlap, reservations
from windlass.core.verdicts import messages


class _Submitted:
    def __init__(self, state: DecisionState) -> None:
        self.beyond = state.snapshot.user_quotas.beyond(state.snapshot.pending_in)
        """Waiting workloads that their users submitted beyond their limit."""


class _BlockedUsers(set[tuple[str, str, str]]):
    """(Strict queue, user, resource class) of a workload that waits for a limit of its user."""


def _blocked(state: DecisionState) -> _BlockedUsers:
    return state.shrinking_cache(_BlockedUsers)


def verdict(state: DecisionState, workload: Workload) -> Verdict | None:
    """The verdict on a waiting workload that a limit of its user keeps waiting."""
    quotas = state.user_quotas
    if not quotas.bind(workload.queue):
        return None
    found = state.cache(_Submitted, lambda: _Submitted(state)).beyond.get(workload.key)
    if found is None:
        info = state.info(workload)
        found = shortage(state, workload, info.requests, info.need) or _beside_reserved(
            state, workload
        )
    return None if found is None else messages.over_user_limit(workload, found)


def hold_back(state: DecisionState, workload: Workload, barred: Verdict) -> None:
    """A workload waits for a limit of its user. A reservation that it has stays until it is due:
    the user's other workloads may have ended by then. In a strict queue the user's later workloads
    wait behind it."""
    if barred.user is None:
        return
    reservation = overlap.release(state, workload)
    reservations.retain(state, reservation)
    if reservation is not None and workload.key not in state.reserved_for:
        state.release()
    if state.queue_of(workload).strict:
        _blocked(state).add((workload.queue, workload.user, state.info(workload).resource_class))


def behind_own(state: DecisionState, workload: Workload) -> Verdict | None:
    """The verdict on a workload of a strict queue that an earlier one of the same user blocks."""
    if not _blocked(state) or workload.key in state.reserved_for:
        return None
    key = (workload.queue, workload.user, state.info(workload).resource_class)
    return messages.behind_own(workload) if key in _blocked(state) else None


def shortage(
    state: DecisionState,
    workload: Workload,
    requests: Sequence[PodSetRequest],
    need: Mapping[str, int],
    *,
    workloads: int = 1,
) -> Shortage | None:
    """The limit of its user that pods of a workload would exceed. Where a limit names a model, a
    workload that may get this model counts as if it did."""
    quotas = state.user_quotas
    if not quotas.bind(workload.queue):
        return None
    modelled = quotas.modelled(workload)
    if modelled:
        cluster = state.context.cluster
        need = {**need, **{r: device_models.most_of(cluster, requests, r) for r in modelled}}
    return quotas.shortage(workload, need, workloads=workloads)


def _beside_reserved(state: DecisionState, workload: Workload) -> Shortage | None:
    """The limit that would be exceeded once workloads of the same user start for which capacity is
    reserved: a user's later workload does not delay the user's reserved one."""
    if not any(reservation.workload.user == workload.user for reservation in state.reservations):
        return None
    quotas = state.user_quotas
    mine = [
        reservation.workload
        for reservation in backfill.overlapping(state, workload, state.expected_end(workload))
        if reservation.workload.user == workload.user and quotas.bind(reservation.workload.queue)
    ]
    for other in mine:
        quotas.add(other, state.need(other))
    info = state.info(workload)
    found = shortage(state, workload, info.requests, info.need) if mine else None
    for other in mine:
        quotas.add(other, state.need(other), sign=-1)
    return found
