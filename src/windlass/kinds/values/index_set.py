"""Sets of array indices: `0-4,7,10-30:5`, the syntax of Slurm's --array.

A set is an integer whose bit `i` stands for index `i`: 10,000 indices are 1.25 KB, and union,
difference and the lowest index are single operations. `parse` accepts what users write, `text`
gives the shortest usual form, and the two are inverse.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

MOST_INDICES: Final = 10_000
HIGHEST_INDEX: Final = 99_999
_PART: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5})(?::(\d{1,5}))?)?")
_ONES: Final = re.compile("1+")


def parse(text: str) -> int:
    """The set. ValueError with a sentence if it is not one."""
    found = 0
    for part in text.split(",") if text else ():
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(
                f"{part!r} is not an index or a range: write 0-99, 0-99:2 or 1,4,7 "
                f"(indices from 0 to {HIGHEST_INDEX})"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        step = int(match[3] or 1)
        if last < first or step < 1:
            raise ValueError(f"the range {part} is empty: write its lower end first")
        found |= _stepped(first, last, step)
    return found


def parse_array(text: str) -> int:
    """The indices of a whole array: at least one, at most 10,000."""
    found = parse(text)
    if not found:
        raise ValueError("an array needs at least one index: write 0-99")
    if found.bit_count() > MOST_INDICES:
        raise ValueError(
            f"{text} has {found.bit_count()} indices, and an array has at most {MOST_INDICES}: "
            "split it into several"
        )
    return found


def split_limit(text: str) -> tuple[str, int | None]:
    """`0-99%8` -> (`0-99`, 8). ValueError with a sentence if the limit is not a number."""
    indices, percent, limit = text.partition("%")
    if not percent:
        return indices, None
    if not limit.isdecimal() or not int(limit):
        raise ValueError(f"%{limit} is not a limit: write how many may run at once, as in 0-99%8")
    return indices, int(limit)


def text(indices: int) -> str:
    """The set as ranges, ascending."""
    return ",".join(_joined(list(_ranges(indices))))


def of(indices: Iterable[int]) -> int:
    found = 0
    for index in indices:
        found |= 1 << index
    return found


def members(indices: int) -> Iterator[int]:
    """The indices, ascending."""
    for first, last in _ranges(indices):
        yield from range(first, last + 1)


def lowest(indices: int) -> int:
    """The lowest index of a set that is not empty."""
    return (indices & -indices).bit_length() - 1


def _stepped(first: int, last: int, step: int) -> int:
    """Doubles the pattern until it is long enough: a loop over the indices would let a short text
    of many ranges take seconds."""
    count = (last - first) // step + 1
    found, have = 1, 1
    while have < count:
        more = min(have, count - have)
        found |= found << step * more
        have += more
    return found << first


def _ranges(indices: int) -> Iterator[tuple[int, int]]:
    """The runs of consecutive indices, as first and last."""
    lowest_first = bin(indices)[:1:-1]
    for found in _ONES.finditer(lowest_first):
        yield found.start(), found.end() - 1


def _joined(ranges: list[tuple[int, int]]) -> Iterator[str]:
    """Each range; of three or more single indices at equal distances, one range with a step."""
    at = 0
    while at < len(ranges):
        first, last = ranges[at]
        if first != last:
            yield f"{first}-{last}"
            at += 1
            continue
        step, end = _equal_steps(ranges, at)
        if end - at >= 3:
            yield f"{first}-{ranges[end - 1][0]}:{step}"
            at = end
        else:
            yield str(first)
            at += 1


def _equal_steps(ranges: list[tuple[int, int]], at: int) -> tuple[int, int]:
    """The distance of the single indices from `at` on, and where they end."""
    end, step = at + 1, 0
    while end < len(ranges) and ranges[end][0] == ranges[end][1]:
        distance = ranges[end][0] - ranges[end - 1][0]
        if step and distance != step:
            break
        step, end = distance, end + 1
    return step, end
