"""Selects the server of a command, and sends a request early, before large imports.

The server is that of --kubeconfig, else of --context, else of the state folder that --state or
WINDLASS_STATE names, else what `store.connect` finds (KUBECONFIG, ~/.windlass, ~/.kube/config, the
pod's service account).
"""

from __future__ import annotations

import json
import os
import re
import urllib.parse
from typing import TYPE_CHECKING, Any

from windlass.cli.lib import base, exit_codes

if TYPE_CHECKING:
    from windlass.cli.lib.state_dir import StateFolder
    from windlass.kinds.types.meta import Object
    from windlass.store.kubernetes.config.model import Access
    from windlass.store.kubernetes.http.early_request import EarlyRequest

_VARIABLES = ("WINDLASS_KUBECONFIG", "KUBECONFIG")
"""Environment variables that name a server, the first one first."""

_NAMESPACE = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def kubeconfig(target: base.Target) -> str | None:
    """The kubeconfig file that the target selects; None for the default places."""
    if target.namespace and not _NAMESPACE.fullmatch(target.namespace):
        raise exit_codes.CliError(
            f"--namespace {target.namespace} cannot be used.",
            "A namespace has lower case letters, digits and '-', at most 63.",
            exit_codes.USAGE,
        )
    if target.kubeconfig or target.context:
        return target.kubeconfig or None
    if not target.state:
        return None
    from windlass.cli.lib import state_dir
    from windlass.store.kubernetes.config import kubeconfig as files

    folder = state_dir.folder(target.state)
    if not files.is_there(folder.kubeconfig):
        raise exit_codes.CliError(
            f"There is no engine state in {folder.path}.",
            f"Start an engine: windlass up --state {folder.path}",
            exit_codes.NO_SERVER,
        )
    return str(folder.kubeconfig)


def option_for(folder: StateFolder) -> str:
    """The option with which a command reaches the engine of the folder; "" if it needs none."""
    from windlass.store import connect, errors

    if os.environ.get("WINDLASS_STATE"):
        from windlass.cli.lib import state_dir

        return "" if state_dir.folder().path == folder.path else f" --state {folder.path}"
    try:
        is_used = (
            connect.find_access().address == connect.find_access(str(folder.kubeconfig)).address
        )
    except errors.ApiError:
        is_used = False
    return "" if is_used else f" --state {folder.path}"


def used_by_default() -> str:
    """The server that commands without options use; "" if there is none."""
    from windlass.cli.lib import state_dir
    from windlass.store import connect, errors

    if os.environ.get("WINDLASS_STATE"):
        return f"the engine of {state_dir.folder().path} (WINDLASS_STATE)"
    try:
        access = connect.find_access()
    except errors.ApiError:
        return ""
    variable = next((name for name in _VARIABLES if os.environ.get(name)), "")
    named = f"context {access.context} of {access.source}" if access.context else access.source
    return f"{named} ({variable})" if variable else named


def other_than_the_engine_here(target: base.Target, access: Access) -> str:
    """A notice if an engine runs on this machine, and an environment variable makes the command use
    another server; "" otherwise, and if an option names the server."""
    variable = next((name for name in _VARIABLES if os.environ.get(name)), "")
    if not variable or target.kubeconfig or target.context or target.state:
        return ""
    from windlass.cli.lib import state_dir

    folder = state_dir.folder()
    server = folder.server()
    if server is None or server.url.rstrip("/") == access.address:
        return ""
    return (
        f"Using {access.address} ({variable}, context {access.context}), not the engine of this "
        f"machine; for that add --state {folder.path}"
    )


def path_of(kind: type[Object], namespace: str, name: str = "") -> str:
    """The REST path of an object or a collection; names are quoted and stay one segment."""
    return kind.resource.path(
        urllib.parse.quote(namespace, safe=""), urllib.parse.quote(name, safe="")
    )


def send_early(target: base.Target, run: dict[str, Any]) -> EarlyRequest | None:
    """Sends the request that creates a Run, and does not wait for the answer. Returns None if it
    was not sent or not wholly; the later, ordinary request then finds the run or reports the
    error."""
    from windlass.kinds.types.run import Run
    from windlass.store import connect, errors
    from windlass.store.kubernetes.http import early_request

    try:
        access = connect.find_access(kubeconfig(target), target.context or None)
    except errors.ApiError:
        return None
    place(run, target.namespace or access.namespace)
    path = path_of(Run, run["metadata"]["namespace"])
    try:
        return early_request.send(access, "POST", path, json.dumps(run).encode())
    except errors.AnswerLost:
        return None


def place(run: dict[str, Any], namespace: str) -> None:
    """Sets the namespace of a Run that has none."""
    run["metadata"]["namespace"] = run["metadata"].get("namespace") or namespace
