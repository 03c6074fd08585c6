"""Users who got more than an equal share of their queue wait, while others wait below theirs.

The same as `core.sharing` does for queues. Small workloads can always use what comes free in small
pieces, so a user of small workloads would keep nodes in pieces for ever, beside users who wait for
whole ones. A user whose claim is used up therefore starts nothing on nodes that a waiting workload
of a user below the own claim could use. The claim is the user's entitlement (`core.usershares`),
less what the user got in excess of it lately.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windlass.core import accounting, amounts, place, sharing, usershares, verdicts
from windlass.core.facts import SHARE_UNIT, Unit, Verdict

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

Mask = npt.NDArray[np.bool_]


@dataclasses.dataclass(slots=True)
class Claims:
    """Of the users of one queue, in one decision."""

    claims: dict[str, float]
    """By user, the share of the cluster that the user may still claim."""
    held: dict[str, float]
    """What each holds, with what starts in this decision."""
    waiting: dict[str, list[Unit]]
    """By user; only of those who were below their claim at the beginning."""
    seen: int = 0
    """Placements that are in `held` already."""
    wanted: Mask | None = None
    """Nodes that those could use who are below their claim."""
    owed: frozenset[str] = frozenset()
    """Users whose nodes these are."""


def overspent(cycle: Cycle, unit: Unit) -> Verdict | None:
    """What a workload is told whose user has used up the claim, while another user waits."""
    known = _claims(cycle, unit.queue) if unit.user else None
    if known is None or known.claims.get(unit.user, 1.0) > 0.0:
        return None
    if unit.key in cycle.memory.promised or unit.key in cycle.snapshot.nominations:
        return None  # a reservation that was given is kept
    _count_started(cycle, unit.queue, known)
    wanted = _wanted(cycle, known)
    if wanted is None:
        return None
    cluster = cycle.scene.cluster
    for shape in cycle.asked(unit).shapes:
        usable = cluster.capacity_of(shape) > 0
        if not (usable & ~wanted).any():
            cycle.wake.append(cycle.now + sharing.LOOK_AGAIN)
            return verdicts.over_user_share(unit)
    return None


def _claims(cycle: Cycle, name: str) -> Claims | None:
    """None: users do not take turns there, or nobody has used up a claim."""
    if name not in cycle.snapshot.user_shares.held:
        return None
    if name not in cycle.user_claims:
        cycle.user_claims[name] = _found(cycle, name)
    return cycle.user_claims[name]


def _found(cycle: Cycle, name: str) -> Claims | None:
    snapshot, queue = cycle.snapshot, cycle.tree.queues[name]
    claims: dict[str, float] = {}
    held: dict[str, float] = {}
    users = {user: each for (own, user), each in snapshot.accounts.items() if own == name and user}
    for user, (share, entitled) in usershares.entitlements(snapshot, name).items():
        others = [(each, 1) for other, each in users.items() if other != user] if user else []
        ahead = accounting.share_ahead(users.get(user), queue, 1, others)
        claims[user], held[user] = entitled - ahead, share
    if all(claim > 0 for claim in claims.values()):
        return None
    asked = snapshot.demand.by_user(name)
    owed = {user for user in asked if held.get(user, 0.0) < claims.get(user, 0.0)}
    waiting: dict[str, list[Unit]] = {}
    for unit in snapshot.members(name) if owed else ():
        if unit.user in owed:
            waiting.setdefault(unit.user, []).append(unit)
    return Claims(claims, held, waiting)


def _count_started(cycle: Cycle, name: str, known: Claims) -> None:
    """What started since the last time counts as held."""
    for key in list(cycle.placements)[known.seen :]:
        unit = cycle.snapshot.waiting.get(key)
        if unit is not None and unit.queue == name:
            need = amounts.of_wishes(cycle.scene.cluster, place.least_of(unit))
            part = cycle.tree.dominant_part(need) / SHARE_UNIT
            known.held[unit.user] = known.held.get(unit.user, 0.0) + part
    known.seen = len(cycle.placements)


def _wanted(cycle: Cycle, known: Claims) -> Mask | None:
    """None: no user waits below the own claim any more."""
    owed = frozenset(
        user
        for user, units in known.waiting.items()
        if known.held.get(user, 0.0) < known.claims[user]
        and any(unit.key not in cycle.placements for unit in units)
    )
    if not owed:
        return None
    if known.wanted is None or owed != known.owed:
        cluster = cycle.scene.cluster
        mask, seen = np.zeros(len(cluster), np.bool_), set[int]()
        for user in owed:
            for unit in known.waiting[user]:
                for shape in cycle.asked(unit).shapes:
                    if shape.id not in seen:
                        seen.add(shape.id)
                        mask |= cluster.capacity_of(shape) > 0
        known.wanted, known.owed = mask, owed
    return known.wanted
