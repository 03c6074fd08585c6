"""The limits of the server as data: defaults, and the ConfigMap that changes them.

    kubectl -n windlass-system create configmap server-limits --from-literal=members.watches=200

`read` never fails: a value that cannot be used is reported, and the default applies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from windlass.kinds.values import quantity

NAMESPACE, NAME = "windlass-system", "server-limits"
"""The ConfigMap."""


@dataclasses.dataclass(frozen=True, slots=True)
class LevelLimits:
    """The limits of one priority level. `user` means one caller of it."""

    seats: int
    """Requests that execute at the same time."""
    user_seats: int
    """Of one user."""
    burst: int
    """Requests of one user that start without a turn, while nothing of the level waits."""
    queue: int
    """Requests of one user that wait for a seat; the next one is refused."""
    wait_seconds: int
    """Longest wait for a seat."""
    watches: int
    """Open watches, followed logs, sessions and waiting requests of one user."""
    connections: int
    """Open connections of one user."""


LEVELS: dict[str, LevelLimits] = {
    "system": LevelLimits(512, 512, 512, 4096, 30, 4096, 8192),
    "administrators": LevelLimits(256, 256, 256, 4096, 30, 4096, 8192),
    "jobs": LevelLimits(128, 16, 2, 2048, 30, 8192, 8192),
    "members": LevelLimits(128, 8, 1, 256, 30, 256, 1024),
    "anonymous": LevelLimits(16, 2, 1, 16, 5, 0, 512),
}
"""Of each level, the most important one first."""


@dataclasses.dataclass(frozen=True, slots=True)
class NamespaceLimits:
    """What one namespace may have in the store and in the storage of uploads."""

    objects: int = 20_000
    """Of one kind."""
    bytes: int = 256 << 20
    """Of all objects together, as they are stored."""
    uploads: int = 2_000
    """Blobs: uploaded code and results of pipeline steps."""
    upload_bytes: int = 200 << 30
    """Of all blobs together."""


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    levels: Mapping[str, LevelLimits] = dataclasses.field(default_factory=lambda: dict(LEVELS))
    namespace: NamespaceLimits = NamespaceLimits()
    tokens: int = 100
    """Valid tokens of one user."""


DEFAULTS = Settings()


def read(data: Mapping[str, str] | None) -> tuple[Settings, list[str]]:
    """The settings of a ConfigMap's data, and one sentence for each value that is not used."""
    chosen: dict[str, dict[str, int]] = {}
    problems: list[str] = []
    for key, text in sorted((data or {}).items()):
        group, _, name = key.partition(".")
        field = _snake(name)
        if field not in _fields(group):
            problems.append(f"{key} is not a limit; limits are {', '.join(names())}")
        elif (value := _amount(text)) is None:
            problems.append(
                f"{key}: {text[:40]!r} is not a whole number above 0, such as 200 or 5Gi"
            )
        else:
            chosen.setdefault(group, {})[field] = value
    levels = {
        name: dataclasses.replace(limits, **chosen.get(name, {})) for name, limits in LEVELS.items()
    }
    namespace = dataclasses.replace(NamespaceLimits(), **chosen.get("namespace", {}))
    tokens = chosen.get("user", {}).get("tokens", DEFAULTS.tokens)
    return Settings(levels, namespace, tokens), problems


def names() -> list[str]:
    """All keys of the ConfigMap."""
    groups = (*LEVELS, "namespace", "user")
    return [f"{group}.{_camel(field)}" for group in groups for field in _fields(group)]


def _fields(group: str) -> tuple[str, ...]:
    if group in LEVELS:
        return tuple(each.name for each in dataclasses.fields(LevelLimits))
    if group == "namespace":
        return tuple(each.name for each in dataclasses.fields(NamespaceLimits))
    return ("tokens",) if group == "user" else ()


def _amount(text: str) -> int | None:
    try:
        value = quantity.whole(text)
    except ValueError:
        return None
    return value if value > 0 else None


def _camel(field: str) -> str:
    first, *rest = field.split("_")
    return first + "".join(part.title() for part in rest)


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
