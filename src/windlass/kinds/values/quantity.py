"""Kubernetes quantities (`500m`, `1.5Gi`, `2e3`), read exactly into integers and written back.

Inside Windlass amounts are integers: thousandths of a core, bytes, thousandths of a device. Finer
amounts are rounded up, as in Kubernetes. No amount is a float: a JSON number with a fraction
is read by its digits.
"""

from __future__ import annotations

import functools
import re
from typing import Final

NANO: Final = 10**9
MAX: Final = 2**63 - 1
"""Larger values count as this one, as in Kubernetes."""

_FORM: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?",
    re.ASCII,
)
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}  # noqa: E501  # fmt: skip
_BINARY: Final = {"": 0, "Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_LONGEST: Final = 128
LEAST_MEMORY: Final = 1 << 20
"""No process runs in less: a smaller amount is a number whose suffix was forgotten."""
_MEMORY: Final = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]+)?) ?(?P<suffix>(?:[kmgtpe]i?)?b?)", re.ASCII | re.IGNORECASE
)
_MEMORY_SUFFIXES: Final = ("k", "m", "g", "t", "p", "e")


class Malformed(ValueError):
    """A text that is not a quantity."""


def nano(value: str | float, *, signed: bool = False) -> int:
    """The amount in nano-units, the precision of Kubernetes; finer amounts are rounded up.

    Raises Malformed if the value is not a quantity or, unless `signed`, negative.
    """
    if isinstance(value, int):
        amount = value * NANO
    else:
        amount = _read(value if isinstance(value, str) else repr(value))
    if amount < 0 and not signed:
        raise Malformed(f"{value!r} is negative")
    return max(-MAX * NANO, min(amount, MAX * NANO))


def milli(value: str | float, *, signed: bool = False) -> int:
    """The amount in thousandths: milli-CPU, milli-devices. `500m` -> 500, `1.5` -> 1500."""
    return -(-nano(value, signed=signed) // 10**6)


def whole(value: str | float, *, signed: bool = False) -> int:
    """The amount in units: bytes, whole devices. `1.5Gi` -> 1610612736."""
    return -(-nano(value, signed=signed) // NANO)


def is_valid(value: object, *, signed: bool = False) -> bool:
    """Whether a JSON value is a quantity."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    try:
        nano(value, signed=signed)
    except Malformed:
        return False
    return True


def of_milli(amount: int) -> str:
    """Thousandths as a quantity: 500 -> `500m`, 2000 -> `2`."""
    return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"


def of_bytes(amount: int) -> str:
    """Bytes with the largest binary suffix that is exact: 34359738368 -> `32Gi`."""
    best = ""
    for suffix, bits in _BINARY.items():
        if amount % (1 << bits) == 0 and amount:
            best = suffix
    return f"{amount >> _BINARY[best]}{best}"


def shortened(amount: int) -> str:
    """Bytes for a person, rounded down to tenths: 25276509184 -> `23.5Gi`."""
    for suffix, bits in reversed(_BINARY.items()):
        if bits and amount >= 1 << bits:
            whole, tenth = divmod(amount * 10 >> bits, 10)
            return f"{whole}.{tenth}{suffix}" if tenth else f"{whole}{suffix}"
    return str(amount)


def memory_problem(value: str | float) -> str:
    """What is wrong with an amount of memory that a person wrote, with the likely meaning; "" if
    nothing is: `is 4 bytes; did you mean 4Gi?`."""
    text = str(value)
    form = _MEMORY.fullmatch(text)
    suffix = form["suffix"].lower().removesuffix("b").removesuffix("i") if form else ""
    try:
        amount = whole(value)
    except Malformed:
        if form is None or suffix not in _MEMORY_SUFFIXES:
            return "is not an amount of memory such as 4Gi or 512Mi"
        letter = "k" if suffix == "k" else suffix.upper()
        number = form["number"]
        if "i" in form["suffix"].lower():
            return f"is not an amount of memory; did you mean {number}{suffix.upper()}i?"
        meant = f"{number}{letter} or {number}{_binary(suffix)}"
        return f"is not an amount of memory; did you mean {meant}?"
    if amount >= LEAST_MEMORY:
        return ""
    if amount == 0 or form is None:
        return f"is {amount} bytes; write a suffix, as in 4Gi"
    number = form["number"]
    suffix = suffix if suffix == "m" else "m" if amount >= 128 else "g"
    return f"is {amount} byte{'s' * (amount != 1)}; did you mean {number}{_binary(suffix)}?"


def _binary(suffix: str) -> str:
    return f"{suffix.upper()}i"


@functools.lru_cache(maxsize=8192)
def _read(text: str) -> int:
    """As `nano` of a text; cached, because thousands of pods have the same few amounts."""
    form = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if form is None or not (form["whole"] or form["part"]):
        raise Malformed(f"{text[:_LONGEST]!r} is not a quantity such as 8, 500m, 1.5 or 32Gi")
    digits, part, suffix = form["whole"] + (form["part"] or ""), form["part"] or "", form["suffix"]
    numerator = int(digits)
    if suffix in _BINARY:
        numerator, exponent = numerator << _BINARY[suffix], 0
    elif suffix in _DECIMAL:
        exponent = _DECIMAL[suffix]
    else:
        exponent = int(suffix[1:]) if suffix else 0
    amount = _scaled(numerator, exponent - len(part) + 9)
    return -amount if form["sign"] == "-" else amount


def _scaled(numerator: int, exponent: int) -> int:
    """numerator * 10**exponent, rounded up; a huge exponent never makes a huge number."""
    if numerator == 0:
        return 0
    power: int = 10 ** min(abs(exponent), 2 * _LONGEST)
    return numerator * power if exponent >= 0 else -(-numerator // power)
