"""Every kind Windlass knows, and how to find one by the names people and programs use."""

from __future__ import annotations

import functools

from windlass.kinds import cronrun, kubernetes, pricelist, queue, reservation, run
from windlass.kinds.meta import Object

OWN: tuple[type[Object], ...] = (
    run.Run, cronrun.CronRun, queue.Queue, reservation.Reservation, pricelist.PriceList,
)  # fmt: skip
"""Our kinds: CRDs on Kubernetes, built in when embedded."""

ALL: tuple[type[Object], ...] = (*kubernetes.ALL, *OWN)


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
    """Any name a person may type: run, runs, Run, runs.windlass.dev, a short name."""
    words: dict[str, type[Object]] = {}
    for kind in (*OWN, *kubernetes.ALL):
        resource = kind.resource
        for word in (resource.plural, resource.singular, resource.key, *resource.short_names):
            words.setdefault(word.lower(), kind)
    return words
