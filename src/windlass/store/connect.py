"""Chooses the API server for a command or a controller and opens a store on it.

Called by the SDK, the CLI and the server processes. The order: an explicit kubeconfig, the
environment variables, the engine that `windlass up` started for this user, kubectl's own file, the
service account of the pod, the file that k3s or kubeadm left for the administrator of this machine.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from windlass.store.kubernetes.config import incluster, kubeconfig
from windlass.store.kubernetes.config.model import Access, KubeconfigError

if TYPE_CHECKING:
    from windlass.store.kubernetes.client import KubernetesStore

_UP_REMEDY = "start it with `windlass up`, or choose another server with --kubeconfig or --context"

ADMINISTRATOR_FILES = {
    "k3s": pathlib.Path("etc/rancher/k3s/k3s.yaml"),
    "RKE2": pathlib.Path("etc/rancher/rke2/rke2.yaml"),
    "kubeadm": pathlib.Path("etc/kubernetes/admin.conf"),
}
"""Where the installers of clusters leave a kubeconfig, below /; only root may read them."""


def open_store(
    kubeconfig: str | None = None, context: str | None = None, *, outage_seconds: float = 0.0
) -> KubernetesStore:
    """A store on the chosen server; no connection is made before the first request.

    `outage_seconds`: seconds that a request waits for a server that is being restarted.
    """
    # Imported here: a caller of `find_access` does not need it.
    from windlass.store.kubernetes.client import KubernetesStore

    return KubernetesStore(find_access(kubeconfig, context), outage_seconds=outage_seconds)


def find_access(
    explicit: str | None = None,
    context: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    service_account: pathlib.Path = incluster.SERVICE_ACCOUNT,
    root: pathlib.Path = pathlib.Path("/"),
) -> Access:
    """The server and identity to use. Raises KubeconfigError with the places that were tried."""
    named = _named(explicit, environ)
    if named is not None:
        access = kubeconfig.select(kubeconfig.load(named, must_exist=True), context)
        return dataclasses.replace(access, engine=_engine(named[0]) if len(named) == 1 else "")
    others: list[str] = []
    for path, config, remedy in _usual_places(environ):
        if context is None or context in config.contexts:
            access = kubeconfig.select(config, context)
            return dataclasses.replace(access, remedy=remedy or access.remedy, engine=_engine(path))
        others += config.contexts
    if context is not None:
        known = ", ".join(sorted(others)) or "none"
        raise KubeconfigError(
            f'context "{context}" was not found; choose one with --context (known: {known})'
        )
    if incluster.available(environ, service_account):
        return incluster.access(environ, service_account)
    for installer, path in administrator_files(root):
        return kubeconfig.select(_administrators(installer, path))
    raise KubeconfigError(
        f"no server found: KUBECONFIG is not set and neither {_state(environ)} nor "
        f"{_home(environ) / '.kube/config'} exists; start one here with `windlass up`, or name a "
        f"cluster with --kubeconfig FILE"
    )


def administrator_files(root: pathlib.Path = pathlib.Path("/")) -> list[tuple[str, pathlib.Path]]:
    """The installers of clusters that left a kubeconfig on this machine, and their files."""
    return [
        (installer, root / path)
        for installer, path in ADMINISTRATOR_FILES.items()
        if kubeconfig.is_there(root / path)
    ]


def _administrators(installer: str, path: pathlib.Path) -> kubeconfig.Kubeconfig:
    try:
        path.open("rb").close()
    except PermissionError:
        raise KubeconfigError(
            f"{installer} runs on this machine, but only root may read {path}; copy it with "
            f"`mkdir -p ~/.kube && sudo install -m 600 -o $USER {path} ~/.kube/config`"
        ) from None
    return kubeconfig.load([path])


def _named(explicit: str | None, environ: Mapping[str, str]) -> list[pathlib.Path] | None:
    if explicit:
        return [pathlib.Path(explicit).expanduser()]
    for variable in ("WINDLASS_KUBECONFIG", "KUBECONFIG"):
        if environ.get(variable):
            return kubeconfig.split_list(environ[variable])
    return None


def _usual_places(
    environ: Mapping[str, str],
) -> Iterator[tuple[pathlib.Path, kubeconfig.Kubeconfig, str]]:
    for path, remedy in (
        (_state(environ), _UP_REMEDY),
        (_home(environ) / ".kube" / "config", ""),
    ):
        if kubeconfig.is_there(path):
            yield path, kubeconfig.load([path]), remedy


def _engine(path: pathlib.Path) -> str:
    """The state folder of an embedded engine whose own kubeconfig this is; "" for any other."""
    try:
        is_own = path.name == "kubeconfig" and (path.parent / "up.json").exists()
    except OSError:
        return ""
    return str(path.parent.absolute()) if is_own else ""


def _state(environ: Mapping[str, str]) -> pathlib.Path:
    folder = environ.get("WINDLASS_STATE")
    base = pathlib.Path(folder).expanduser() if folder else _home(environ) / ".windlass"
    return base / "kubeconfig"


def _home(environ: Mapping[str, str]) -> pathlib.Path:
    return pathlib.Path(environ.get("HOME") or pathlib.Path.home())
