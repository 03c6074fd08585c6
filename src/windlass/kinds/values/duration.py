"""Durations as people write them (`90s`, `2h`, `1h30m`, `7d`, `250ms`), as exact integers.

The grammar is that of `kinds.types.field_types.Duration`: units from large to small, each at most
once, no zeros except `0s`. So a duration has few spellings, and a pattern in the CRD can check it.
"""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_FORM: Final = re.compile(
    "".join(f"(?:(?P<{unit}>[1-9][0-9]{{0,8}}){unit})?" for unit in _UNITS), re.ASCII
)


class Malformed(ValueError):
    """A text that is not a duration."""


def milliseconds(text: str) -> int:
    """`1h30m` -> 5400000. Raises Malformed if the text is not a duration."""
    if text == "0s":
        return 0
    form = _FORM.fullmatch(text)
    if form is None or not text:
        raise Malformed(f"{text!r} is not a duration such as 90s, 2h, 1h30m or 7d")
    return sum(int(form[unit]) * size for unit, size in _UNITS.items() if form[unit])


def seconds(text: str) -> int:
    """The duration in seconds, rounded up: a limit is never shorter than requested."""
    return -(-milliseconds(text) // 1000)
