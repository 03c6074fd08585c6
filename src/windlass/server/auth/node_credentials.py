"""The credentials of an agent: a kubeconfig with a token for the agent of one node.

`server.main` writes it at each start into the agent's state folder. So the agent never has the
token
of the administrator: a compromised agent exposes one node, not the platform.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

from windlass.server.auth.bearer_tokens import Tokens, create_token
from windlass.server.auth.identity import NODE_PREFIX, NODES
from windlass.store.embedded.api import Api
from windlass.store.kubernetes.config import kubeconfig
from windlass.store.kubernetes.config.model import KubeconfigError

CONTEXT = "windlass-agent"


def path_in(state: Path) -> Path:
    return state / "agent" / "kubeconfig"


async def ensure(api: Api, state: Path, node: str, url: str, authority: bytes | None) -> None:
    """The agent's kubeconfig for this address; keeps a valid token of this node."""
    path = path_in(state)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.with_name(path.name + ".lock").unlink(missing_ok=True)
    token = _known(path)
    found = await Tokens(api).identify(token) if token else None
    if found is None or found[0].node != node:
        token = await create_token(api, f"{NODE_PREFIX}{node}", (NODES,))
    cluster: dict[str, Any] = {"server": url}
    if authority is not None:
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    kubeconfig.merge_context(path, CONTEXT, cluster, {"token": token}, make_current=True)
    os.chmod(path, 0o600)


def _known(path: Path) -> str:
    try:
        user = kubeconfig.load([path]).users.get(CONTEXT)
    except KubeconfigError:
        return ""
    return user.token if user else ""
