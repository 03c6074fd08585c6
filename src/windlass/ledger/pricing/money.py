"""Amounts of money for output: micros that add up, and text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

MICRO = 1000
"""Nanos (billionths of the currency) in a micro (millionth)."""
UNIT = 1_000_000
"""Micros in one of the currency."""


def micros(amounts: Sequence[int]) -> list[int]:
    """Nanos as micros whose sum is the rounded sum: the remainders of rounding down go to the
    largest remainders."""
    total = (sum(amounts) + MICRO // 2) // MICRO
    found = [each // MICRO for each in amounts]
    order = sorted(range(len(amounts)), key=lambda i: (-(amounts[i] % MICRO), i))
    for index in order[: total - sum(found)]:
        found[index] += 1
    return found


def plain(nano: int) -> str:
    """Nanos as a plain decimal number with six places: `12.345678`."""
    micro = (nano + MICRO // 2) // MICRO
    return f"{micro // UNIT}.{micro % UNIT:06d}"


def text(micro: int, currency: str = "") -> str:
    """`1,234.56 EUR`; the smallest amounts with all digits."""
    places = 2 if abs(micro) >= 10_000 or micro == 0 else 6
    shown = f"{micro / UNIT:,.{places}f}"
    return f"{shown} {currency}".strip()
