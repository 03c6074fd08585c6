"""Quantities are read exactly, rounded up, and written as Kubernetes writes them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.kinds.values import quantity

NUMBERS = st.decimals(min_value=0, max_value=10**15, places=9, allow_nan=False).map(
    lambda number: format(number, "f")
)
SUFFIXES = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40),
    "e3": Fraction(1000), "E-2": Fraction(1, 100),
}  # fmt: skip
TEXTS = st.tuples(NUMBERS, st.sampled_from(sorted(SUFFIXES)))


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("500m", 500), ("1", 1000), (8, 8000), ("1.5", 1500), (".5", 500), ("2.", 2000),
        ("2e3", 2_000_000), ("2E3", 2_000_000), ("1E", 10**21), ("1.5e-1", 150), ("1u", 1),
        ("1n", 1), ("1001u", 2), ("0", 0), ("-0", 0), (0.5, 500), (1e-05, 1), ("+3", 3000),
    ],
)  # fmt: skip
def test_thousandths_are_exact_and_round_up(text: str | float, milli: int) -> None:
    assert quantity.milli(text) == milli


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1.5Gi", 1610612736), ("32Gi", 32 << 30), ("1Ei", 1 << 60), ("1k", 1000), ("1Ki", 1024),
        ("0.1", 1), ("100M", 10**8), ("8Ei", quantity.MAX), ("1e99", quantity.MAX),
        ("1e999999999", quantity.MAX), ("1e-999999999", 1), ("1.1Ki", 1127),
        ("5000e-0000003", 5), ("0" * 100 + "7", 7),
    ],
)  # fmt: skip
def test_bytes_are_exact_round_up_and_have_a_largest_value(text: str, count: int) -> None:
    assert quantity.whole(text) == count


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1 ", "1gi", "1KI", "1K", "Gi", "1.2.3", "1e", "e3", "NaN", "inf", "1_000", "\u0661",
     "--1", "1ki", ".", "0x10", "1\n", "1" * 500, float("nan"), float("inf")],
)  # fmt: skip
def test_what_is_no_quantity_is_refused(text: str | float) -> None:
    with pytest.raises(quantity.Malformed):
        quantity.nano(text)


def test_below_zero_is_refused_unless_asked_for() -> None:
    with pytest.raises(quantity.Malformed, match="is negative"):
        quantity.milli("-1")
    assert quantity.milli("-1500m", signed=True) == -1500
    assert quantity.is_valid("-1", signed=True)
    assert not quantity.is_valid("-1")
    assert not quantity.is_valid(True)
    assert not quantity.is_valid(None)


@given(TEXTS)
def test_reading_equals_exact_arithmetic_rounded_up(parts: tuple[str, str]) -> None:
    number, suffix = parts
    exact = Fraction(number) * SUFFIXES[suffix] * 10**9
    expected = -((-exact.numerator) // exact.denominator)
    assert quantity.nano(number + suffix) == min(expected, quantity.MAX * quantity.NANO)


@given(TEXTS, TEXTS)
def test_order_is_preserved(one: tuple[str, str], other: tuple[str, str]) -> None:
    exact = [Fraction(number) * SUFFIXES[suffix] for number, suffix in (one, other)]
    read = [quantity.milli("".join(parts)) for parts in (one, other)]
    assert (exact[0] <= exact[1]) <= (read[0] <= read[1])


@given(st.integers(0, 2**62))
def test_integers_survive_writing_and_reading(amount: int) -> None:
    assert quantity.milli(quantity.of_milli(amount)) == min(amount, quantity.MAX * 1000)
    assert quantity.whole(quantity.of_bytes(amount)) == amount
