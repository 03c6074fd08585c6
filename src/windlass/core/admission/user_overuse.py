"""Users who got more than an equal share of their queue wait, while others wait below theirs.

The same as `queue_overuse` does for queues. Small workloads can always use what comes free in small
pieces, so a user of small workloads would keep nodes in pieces for ever, beside users that wait
for whole ones. A user whose claim is used up therefore starts nothing on nodes that a
waiting workload of a user below the own claim could use. The claim is the user's entitlement
(`core.fairness.user_shares`), less what the user got in excess of it lately.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from windlass.core.admission import queue_overuse
from windlass.core.decision.state import DecisionState
from windlass.core.fairness import accounts, past_use
from windlass.core.model import pod_sets
from windlass.core.model.types import SHARE_UNIT, Verdict, Workload
from windlass.core.quota import usage
from windlass.core.verdicts import messages

Mask = npt.NDArray[np.bool_]


@dataclasses.dataclass(slots=True)
class Claims:
    """Of the users of one queue, in one decision."""

    claims: dict[str, float]
    """By user, the share of the cluster that the user may still claim."""
    held: dict[str, float]
    """What each holds, with what starts in this decision."""
    waiting: dict[str, list[Workload]]
    """By user; only of users that were below their claim at the beginning."""
    seen: int = 0
    """Placements that are in `held` already."""
    wanted: Mask | None = None
    """Nodes that workloads of users below their claim could use."""
    owed: frozenset[str] = frozenset()
    """Users whose nodes these are."""


class _QueueClaims(dict[str, Claims | None]):
    """Queue -> the claims of its users; None: none of them is used up."""


def overspent(state: DecisionState, workload: Workload) -> Verdict | None:
    """The verdict on a workload whose user has used up the claim, while another user waits."""
    known = _claims(state, workload.queue) if workload.user else None
    if known is None or known.claims.get(workload.user, 1.0) > 0.0:
        return None
    if workload.key in state.reserved_for or workload.key in state.snapshot.nominations:
        return None  # a reservation that was given is kept
    _count_started(state, workload.queue, known)
    wanted = _wanted(state, known)
    if wanted is None:
        return None
    cluster = state.context.cluster
    for shape in state.info(workload).shapes:
        usable = cluster.empty_pod_capacity(shape) > 0
        if not (usable & ~wanted).any():
            state.wakeups.append(state.now + queue_overuse.CHECK_AGAIN)
            return messages.lasting(state, workload, messages.over_user_share(workload))
    return None


def _claims(state: DecisionState, name: str) -> Claims | None:
    """None: users do not take turns there, or no claim is used up."""
    if name not in state.snapshot.user_shares.held:
        return None
    claims = state.cache(_QueueClaims)
    if name not in claims:
        claims[name] = _found(state, name)
    return claims[name]


def _found(state: DecisionState, name: str) -> Claims | None:
    snapshot, queue = state.snapshot, state.tree.queues[name]
    claims: dict[str, float] = {}
    held: dict[str, float] = {}
    users = {user: each for (own, user), each in snapshot.accounts.items() if own == name and user}
    for user, (share, entitled) in accounts.entitlements(snapshot, name).items():
        others = [(each, 1) for other, each in users.items() if other != user] if user else []
        ahead = past_use.share_ahead(users.get(user), queue, 1, others, snapshot.horizon)
        claims[user], held[user] = entitled - ahead, share
    if all(claim > 0 for claim in claims.values()):
        return None
    asked = snapshot.demand.by_user(name)
    owed = {user for user in asked if held.get(user, 0.0) < claims.get(user, 0.0)}
    waiting: dict[str, list[Workload]] = {}
    for workload in snapshot.pending_in(name) if owed else ():
        if workload.user in owed:
            waiting.setdefault(workload.user, []).append(workload)
    return Claims(claims, held, waiting)


def _count_started(state: DecisionState, name: str, known: Claims) -> None:
    """What started since the last time counts as held."""
    for key in list(state.placements)[known.seen :]:
        workload = state.snapshot.waiting.get(key)
        if workload is not None and workload.queue == name:
            need = usage.of_requests(state.context.cluster, pod_sets.minimum(workload))
            part = state.tree.dominant_part(need) / SHARE_UNIT
            known.held[workload.user] = known.held.get(workload.user, 0.0) + part
    known.seen = len(state.placements)


def _wanted(state: DecisionState, known: Claims) -> Mask | None:
    """None: no user waits below the own claim any more."""
    owed = frozenset(
        user
        for user, workloads in known.waiting.items()
        if known.held.get(user, 0.0) < known.claims[user]
        and any(workload.key not in state.placements for workload in workloads)
    )
    if not owed:
        return None
    if known.wanted is None or owed != known.owed:
        cluster = state.context.cluster
        mask, seen = np.zeros(len(cluster), np.bool_), set[int]()
        for user in owed:
            for workload in known.waiting[user]:
                for shape in state.info(workload).shapes:
                    if shape.id not in seen:
                        seen.add(shape.id)
                        mask |= cluster.empty_pod_capacity(shape) > 0
        known.wanted, known.owed = mask, owed
    return known.wanted
