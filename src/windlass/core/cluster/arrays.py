"""Array operations that the core does thousands of times a decision: where NumPy's own are made for
larger arrays or have to sort, and rows of what pods hold as those of fewer nodes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


_FEW_NUMBERS = 12
_FEW_ROWS = 128
"""Where calling costs more than counting."""


def distinct(numbers: Ints | list[int], size: int) -> Ints:
    """Each of some numbers below `size` once, ascending."""
    if isinstance(numbers, list) and len(numbers) <= _FEW_NUMBERS:
        return np.array(sorted(set(numbers)), np.int64)
    found = np.zeros(size, np.bool_)
    found[numbers] = True
    return found.nonzero()[0]


def row_sums(table: npt.NDArray[np.generic]) -> Ints:
    """Over rows of a few columns, which `sum` adds one row at a time."""
    if len(table) <= _FEW_ROWS:
        return np.asarray(np.add.reduce(table, axis=1, dtype=np.int64))
    return np.asarray(np.einsum("ij->i", table, dtype=np.int64, casting="unsafe"))


def rows_in(where: Ints, width: int, members: Ints, devices: Ints) -> tuple[Ints, Ints]:
    """Rows of a cluster as rows of its part `where`; `width` is that of its bank."""
    nodes, owners = members[0], devices[0] // max(width, 1)
    most = max(nodes.max(initial=-1), owners.max(initial=-1), where.max(initial=-1))
    number = np.full(most + 1, -1, np.int64)
    number[where] = np.arange(len(where))
    inside = devices[0] - owners * width
    members, devices = members.copy(), devices.copy()
    members[0], owners = number[nodes], number[owners]
    devices[0] = owners * width + inside
    here, there = members[0] >= 0, owners >= 0
    if not here.all():
        members = members.compress(here, axis=1)
    if not there.all():
        devices = devices.compress(there, axis=1)
    return members, devices
