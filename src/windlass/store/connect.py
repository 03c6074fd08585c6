"""Chooses the API server that a command or a controller talks to, and opens the store on it.

Called by the SDK, the CLI and the server processes. The order: what was given explicitly, the
environment, the engine that `windlass up` started for this user, kubectl's own file, the pod we
run in.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from windlass.store.kubernetes import incluster, kubeconfig
from windlass.store.kubernetes.access import Access, KubeconfigError

if TYPE_CHECKING:
    from windlass.store.kubernetes.client import KubernetesStore

_UP_REMEDY = "start it with `windlass up`, or choose another server with --kubeconfig or --context"


def open_store(kubeconfig: str | None = None, context: str | None = None) -> KubernetesStore:
    """A store on the chosen server; no connection is made before the first request."""
    # Imported late: who only asks where the server is needs neither.
    from windlass.store.kubernetes.client import KubernetesStore

    return KubernetesStore(find_access(kubeconfig, context))


def find_access(
    explicit: str | None = None,
    context: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    service_account: pathlib.Path = incluster.SERVICE_ACCOUNT,
) -> Access:
    """The server and identity to use, or one clear error that lists where it looked."""
    named = _named(explicit, environ)
    if named is not None:
        return kubeconfig.select(kubeconfig.load(named, must_exist=True), context)
    others: list[str] = []
    for config, remedy in _usual_places(environ):
        if context is None or context in config.contexts:
            access = kubeconfig.select(config, context)
            return dataclasses.replace(access, remedy=remedy) if remedy else access
        others += config.contexts
    if context is not None:
        known = ", ".join(sorted(others)) or "none"
        raise KubeconfigError(
            f'context "{context}" was not found; choose one with --context (known: {known})'
        )
    if incluster.available(environ, service_account):
        return incluster.access(environ, service_account)
    raise KubeconfigError(
        f"no server to talk to: KUBECONFIG is not set and neither {_state(environ)} nor "
        f"{_home(environ) / '.kube/config'} exists; start one here with `windlass up`, or name a "
        f"cluster with --kubeconfig FILE"
    )


def _named(explicit: str | None, environ: Mapping[str, str]) -> list[pathlib.Path] | None:
    if explicit:
        return [pathlib.Path(explicit).expanduser()]
    for variable in ("WINDLASS_KUBECONFIG", "KUBECONFIG"):
        if environ.get(variable):
            return kubeconfig.split_list(environ[variable])
    return None


def _usual_places(environ: Mapping[str, str]) -> Iterator[tuple[kubeconfig.Kubeconfig, str]]:
    for path, remedy in (
        (_state(environ), _UP_REMEDY),
        (_home(environ) / ".kube" / "config", ""),
    ):
        if kubeconfig.is_there(path):
            yield kubeconfig.load([path]), remedy


def _state(environ: Mapping[str, str]) -> pathlib.Path:
    folder = environ.get("WINDLASS_STATE")
    base = pathlib.Path(folder).expanduser() if folder else _home(environ) / ".windlass"
    return base / "kubeconfig"


def _home(environ: Mapping[str, str]) -> pathlib.Path:
    return pathlib.Path(environ.get("HOME") or pathlib.Path.home())
