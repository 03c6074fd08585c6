"""Ages in tables, in the format of kubectl."""

from __future__ import annotations

import datetime

from windlass.kinds.values import times


def age(timestamp: str, now: datetime.datetime) -> str:
    """The age of a time: `45s`, `3m2s`, `5h10m`, `12d`, `2y30d`."""
    try:
        seconds = int((now - times.parse(timestamp)).total_seconds())
    except (ValueError, OverflowError):
        return "<invalid>"
    if seconds < -1:
        return "<invalid>"
    return duration(max(0, seconds))


def duration(seconds: int) -> str:
    """A duration in its two largest units, in the format of kubectl."""
    minutes, hours = seconds // 60, seconds // 3600
    days = hours // 24
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    if days < 8 * 365:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"
