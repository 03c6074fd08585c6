"""Array operations that the core does thousands of times a decision, where NumPy's own are made for
larger arrays or have to sort."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def distinct(numbers: Ints | list[int], size: int) -> Ints:
    """Each of some numbers below `size` once, ascending."""
    found = np.zeros(size, np.bool_)
    found[numbers] = True
    return found.nonzero()[0]


def row_sums(table: npt.NDArray[np.generic]) -> Ints:
    """Over rows of a few columns, which `sum` adds one row at a time."""
    return np.asarray(np.einsum("ij->i", table, dtype=np.int64, casting="unsafe"))
