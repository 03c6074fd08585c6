"""Sparing: who of those that were to go can stay after all.

`freeing.plan` calls `spare` with a set in which the gainer fits; afterwards nobody in it could be
taken back alone. Room is counted in plain numbers where that is exact (`Tally`), else by trying
the placement again (`Retry`); quotas are kept in `Books`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from windlass.core import arrays, victims
from windlass.core.choosing import UNLOCKED
from windlass.core.cluster import Cluster
from windlass.core.place import Wish
from windlass.core.queues import Tree
from windlass.core.roster import Piece
from windlass.core.shapes import Shape
from windlass.core.victims import Claim, Pool

if TYPE_CHECKING:
    from windlass.core.freeing import Trial

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def spare(trial: Trial, gone: Mask, rank: Ints) -> bool:
    """Takes back, dearest first, everybody without whom the gainer still fits; says whether there
    was anybody."""
    books = Books(trial.claim, trial.pool, gone) if trial.quota else None
    counter = count_for(trial, gone)
    spared = _spare_once(trial, gone, rank, books, counter)
    if spared:  # where the least of a unit stays now, so may its surplus
        _spare_once(trial, gone, rank, books, counter)
    return spared


def _spare_once(
    trial: Trial, gone: Mask, rank: Ints, books: Books | None, counter: Counter
) -> bool:
    spared = False
    members = np.flatnonzero(gone)
    for i in members[np.argsort(-rank[members])]:
        least = int(trial.pool.least[i])
        if trial.pool.pieces[i].surplus and least >= 0 and gone[least]:
            continue  # its unit goes as a whole
        if books is not None and not books.stays(int(i)):
            continue
        gone[i] = False
        if counter.stays(trial.pool.pieces[i], gone):
            spared = True
            continue
        gone[i] = True
        if books is not None:
            books.goes(int(i))
    return spared


class Counter(Protocol):
    def stays(self, piece: Piece, gone: Mask) -> bool:
        """Counts the piece as staying, if the gainer fits nevertheless."""
        ...


def count_for(trial: Trial, gone: Mask) -> Counter:
    base = trial.base
    plain = [wish for wish in trial.wishes if is_plain(base, base.shape_of(wish.role))]
    tallies = [Tally(trial, gone, wish) for wish in plain]
    if trial.alike and tallies:
        return tallies[0]
    return Retry(trial, tallies)


def is_plain(cluster: Cluster, shape: Shape) -> bool:
    """Whether room for it is a matter of sums and of whole free devices, of which no advance
    reservation holds any back."""
    if shape.ports or shape.bundle or len(shape.requests) > 1:
        return False
    if cluster.reserved.has_parts(shape.constraint.reserved):
        return False
    return all(
        request.form == "whole" and (len(request.models) < 2 or request.count == 1)
        for request in shape.requests
    )


class Retry:
    """Tries the placement again for every piece: any shapes, any terms. Where too little is left
    for one of the roles alone, that is not needed to say no."""

    def __init__(self, trial: Trial, tallies: Sequence[Tally]) -> None:
        self._trial, self._tallies = trial, tallies

    def stays(self, piece: Piece, gone: Mask) -> bool:
        counted: list[Tally] = []
        for tally in self._tallies:
            if not tally.stays(piece, gone):
                break
            counted.append(tally)
        else:
            if not self._trial.cycle.work.exhausted and self._trial.fits(gone):
                return True
        for tally in counted:
            tally.undo(piece)
        return False


class Tally:
    """Counts members that fit, piece by piece, in plain numbers."""

    def __init__(self, trial: Trial, gone: Mask, wish: Wish) -> None:
        shape = trial.base.shape_of(wish.role)
        members, devices = trial.rows(gone)
        where, caps = arrays.distinct(members[0], len(trial.base)), trial.caps(gone, shape)
        here = trial.nodes[where].tolist()
        part = trial.base.part_without(where, members, devices)
        self._caps = dict(zip(here, caps[where].tolist(), strict=True))
        """Only of nodes where somebody goes: nothing changes elsewhere."""
        self._needs = [
            (c, need, dict(zip(here, part.free[c].tolist(), strict=True)))
            for c, need in shape.needs
        ]
        self._ids = dict(zip(here, trial.domains[where].tolist(), strict=True))
        self._sums = np.bincount(trial.domains, weights=caps).astype(np.int64).tolist()
        self._count = wish.count
        self._enough = sum([total >= self._count for total in self._sums])
        self._width = part.bank.compute.shape[1]
        self._before: list[tuple[int, int]] = []
        self._taken: list[int] = []
        """What the piece that was counted last changed."""
        self._per_member = 0
        self._free: set[int] = set()
        """Devices that a member could have."""
        self._devices: dict[int, int] = {}
        if shape.requests:
            usable = part.bank.eligible(shape.requests[0]) & (part.bank.mode == UNLOCKED)
            self._per_member = shape.requests[0].count
            rows, at = np.nonzero(usable)
            self._free = set((trial.nodes[where][rows] * self._width + at).tolist())
            self._devices = dict(zip(here, usable.sum(axis=1).tolist(), strict=True))

    def stays(self, piece: Piece, gone: Mask) -> bool:  # noqa: ARG002
        self._taken = self._occupy(piece)
        nodes = {node for node, *_ in piece.members}
        self._before = [(node, self._caps[node]) for node in nodes]
        for node, cap in self._before:
            if cap:
                self._set_cap(node, self._cap(node))
        if not self._enough:
            self.undo(piece)
            return False
        return True

    def undo(self, piece: Piece) -> None:
        """The piece that was counted last goes after all."""
        for node, cap in self._before:
            self._set_cap(node, cap)
        self._vacate(piece, self._taken)

    def _occupy(self, piece: Piece) -> list[int]:
        for member in piece.members:
            for column, _, free in self._needs:
                free[member[0]] -= member[1 + column]
        taken = []
        if self._per_member:
            for device, *_ in piece.grants:
                if device in self._free:
                    self._free.discard(device)
                    self._devices[device // self._width] -= 1
                    taken.append(device)
        return taken

    def _vacate(self, piece: Piece, taken: Iterable[int]) -> None:
        for member in piece.members:
            for column, _, free in self._needs:
                free[member[0]] += member[1 + column]
        for device in taken:
            self._free.add(device)
            self._devices[device // self._width] += 1

    def _cap(self, node: int) -> int:
        fit = min((free[node] // need for _, need, free in self._needs), default=1 << 40)
        if self._per_member:
            fit = min(fit, self._devices[node] // self._per_member)
        return max(0, fit)

    def _set_cap(self, node: int, cap: int) -> None:
        domain = self._ids[node]
        total = self._sums[domain]
        self._sums[domain] = total + cap - self._caps[node]
        self._caps[node] = cap
        self._enough += (self._sums[domain] >= self._count) - (total >= self._count)


class Books:
    """What quotas say while pieces go and stay: the gainer's queue may use what it needs, and has
    the right to everything that is taken back for it."""

    def __init__(self, claim: Claim, pool: Pool, gone: Mask) -> None:
        self._claim, self._pool = claim, pool
        self._tree: Tree = claim.tree.fork()
        self._taken_from: dict[str, int] = {}
        """Other queue -> how many of its pieces go, but for surplus that yields anyway."""
        self._yields = victims.yields(pool, claim.unit.queue)
        for queue, _, held in pool.held_by(gone):
            self._tree.add(queue, held, firm=False, sign=-1)
        for queue, count, _ in pool.held_by(gone & ~self._yields):
            if queue != claim.unit.queue:
                self._taken_from[queue] = count

    def go_until_allowed(self, sequence: Ints) -> int:
        """How many in sequence must go until no quota is in the way."""
        for number, i in enumerate(sequence):
            if self.allow():
                return number
            self.goes(int(i))
        return len(sequence)

    def goes(self, i: int) -> None:
        self._move(i, -1)

    def stays(self, i: int) -> bool:
        """Counts it as staying if quotas allow."""
        self._move(i, +1)
        if self.allow():
            return True
        self._move(i, -1)
        return False

    def _move(self, i: int, sign: int) -> None:
        piece = self._pool.pieces[i]
        queue = piece.running.unit.queue
        self._tree.add(queue, piece.held, firm=False, sign=sign)
        if queue != self._claim.unit.queue and not self._yields[i]:
            self._taken_from[queue] = self._taken_from.get(queue, 0) - sign

    def allow(self) -> bool:
        unit = self._claim.unit
        if self._tree.shortage(unit.queue, self._claim.need, firm=not unit.preemptible):
            return False
        return all(
            victims.may_take_back(self._claim, self._tree, queue)
            for queue, count in self._taken_from.items()
            if count
        )
