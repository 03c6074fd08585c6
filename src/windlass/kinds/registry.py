"""All kinds of Windlass, and lookups by the names that users and programs use."""

from __future__ import annotations

import functools

from windlass.kinds.types import core, cronrun, pricelist, queue, reservation, run
from windlass.kinds.types.meta import Object

OWN: tuple[type[Object], ...] = (
    run.Run, cronrun.CronRun, queue.Queue, reservation.Reservation, pricelist.PriceList,
)  # fmt: skip
"""Windlass' own kinds: CRDs on Kubernetes, built into the embedded server."""

ALL: tuple[type[Object], ...] = (*core.ALL, *OWN)


@functools.cache
def by_key() -> dict[str, type[Object]]:
    """`pods`, `runs.windlass.dev` -> the kind."""
    return {kind.resource.key: kind for kind in ALL}


@functools.cache
def by_kind() -> dict[tuple[str, str], type[Object]]:
    """(apiVersion, kind) -> the kind."""
    return {(kind.resource.api_version, kind.resource.kind): kind for kind in ALL}


@functools.cache
def by_path() -> dict[tuple[str, str, str], type[Object]]:
    """(group, version, plural) -> the kind, as REST paths name it."""
    return {(k.resource.group, k.resource.version, k.resource.plural): k for k in ALL}


@functools.cache
def by_word() -> dict[str, type[Object]]:
    """Any name a user may type (run, runs, Run, runs.windlass.dev, a short name) -> the kind."""
    by_name: dict[str, type[Object]] = {}
    for kind in (*OWN, *core.ALL):
        resource = kind.resource
        for word in (resource.plural, resource.singular, resource.key, *resource.short_names):
            by_name.setdefault(word.lower(), kind)
    return by_name
