"""Which server a command talks to, and a first request to it before anything heavy is loaded.

Which server: --kubeconfig, else --context, else the state folder that --state or WINDLASS_STATE
names, else what `store.connect` finds (KUBECONFIG, ~/.windlass, ~/.kube/config, the pod we are in).
"""

from __future__ import annotations

import json
import urllib.parse
from typing import TYPE_CHECKING, Any

from windlass.cli import base, exits

if TYPE_CHECKING:
    from windlass.kinds.meta import Object
    from windlass.store.kubernetes.ahead import Sent


def kubeconfig(target: base.Target) -> str | None:
    """The file that was meant; None: the usual places."""
    if target.kubeconfig or target.context:
        return target.kubeconfig or None
    if not target.state:
        return None
    from windlass.cli import state
    from windlass.store.kubernetes import kubeconfig as files

    folder = state.folder(target.state)
    if not files.is_there(folder.kubeconfig):
        raise exits.CliError(
            f"No engine has ever run on {folder.path}.",
            f"Start one: windlass up --state {folder.path}",
            exits.NO_SERVER,
        )
    return str(folder.kubeconfig)


def path_of(kind: type[Object], namespace: str, name: str = "") -> str:
    """The REST path of an object or a collection; no name can climb out of its place."""
    return kind.resource.path(
        urllib.parse.quote(namespace, safe=""), urllib.parse.quote(name, safe="")
    )


def send_ahead(target: base.Target, run: dict[str, Any]) -> Sent | None:
    """Hands in a Run, and does not wait for the answer. None: it was not sent; what hinders is
    told by the ordinary way."""
    from windlass.kinds.run import Run
    from windlass.store import connect, errors
    from windlass.store.kubernetes import ahead

    try:
        access = connect.find_access(kubeconfig(target), target.context or None)
    except errors.ApiError:
        return None
    place(run, target.namespace or access.namespace)
    path = path_of(Run, run["metadata"]["namespace"])
    try:
        return ahead.send(access, "POST", path, json.dumps(run).encode())
    except errors.Unavailable as problem:
        raise exits.CliError(exits.sentence(problem.message), "", exits.NO_SERVER) from problem


def place(run: dict[str, Any], namespace: str) -> None:
    """Gives a Run its namespace, if it has none."""
    run["metadata"]["namespace"] = run["metadata"].get("namespace") or namespace
