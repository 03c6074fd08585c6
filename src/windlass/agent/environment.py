"""The environment and the command of a container, with every reference filled in.

As in Kubernetes: envFrom first, then env; `$(NAME)` stands for what was defined before it,
`$$(NAME)` for the text itself. Reads Secrets and ConfigMaps through the store; writes nothing.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping, Sequence

from windlass.kinds import kubernetes
from windlass.store import client, errors

INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
)  # fmt: skip
"""What of the agent's own environment a container sees: the machine's, never the agent's."""

_REFERENCE = re.compile(r"\$(\$|\([A-Za-z_][A-Za-z0-9_.-]*\))")


class MissingError(Exception):
    """Something the pod refers to is not there; it may come."""


async def build(
    store: client.Store,
    pod: kubernetes.Pod,
    container: kubernetes.Container,
    facts: Mapping[str, str],
) -> dict[str, str]:
    """All variables. `facts` are the fields only the node knows, such as status.podIP."""
    built = {name: os.environ[name] for name in INHERITED if name in os.environ}
    sources = _Sources(store, pod.namespace)
    for source in container.env_from or ():
        for name, value in (await sources.everything(source)).items():
            built[source.prefix + name] = value
    for variable in container.env or ():
        if variable.value_from is None:
            built[variable.name] = expand(variable.value, built)
            continue
        found = await sources.one(variable.value_from, pod, facts)
        if found is not None:
            built[variable.name] = found
    return built


def command(container: kubernetes.Container, environment: Mapping[str, str]) -> list[str]:
    """Program and arguments, with `$(NAME)` filled in."""
    words = [*(container.command or ()), *(container.args or ())]
    return [expand(word, environment) for word in words]


def expand(text: str, known: Mapping[str, str]) -> str:
    """`$(NAME)` -> its value if it is known, else as written; `$$` -> `$`."""

    def fill(match: re.Match[str]) -> str:
        inner = match[1]
        return "$" if inner == "$" else known.get(inner[1:-1], match[0])

    return _REFERENCE.sub(fill, text)


def field(pod: kubernetes.Pod, path: str, facts: Mapping[str, str]) -> str:
    """A field of the pod, as the downward API names it."""
    subscript = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path)
    if subscript:
        mapping = pod.metadata.labels if subscript[1] == "labels" else pod.metadata.annotations
        return (mapping or {}).get(subscript[2], "")
    simple = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        **facts,
    }
    if path not in simple:
        raise MissingError(f"fieldRef {path} is not supported; use one of {', '.join(simple)}")
    return simple[path]


class _Sources:
    """Secrets and ConfigMaps of a namespace, each read once."""

    def __init__(self, store: client.Store, namespace: str) -> None:
        self._store = store
        self._namespace = namespace
        self._read: dict[tuple[str, str], dict[str, str] | None] = {}

    async def everything(self, source: kubernetes.EnvFrom) -> dict[str, str]:
        for kind, ref in (("Secret", source.secret_ref), ("ConfigMap", source.config_map_ref)):
            if ref is not None:
                values = await self._values(kind, ref.name)
                if values is None and not ref.optional:
                    raise MissingError(f'{kind} "{ref.name}" not found')
                return values or {}
        return {}

    async def one(
        self, source: kubernetes.EnvVarSource, pod: kubernetes.Pod, facts: Mapping[str, str]
    ) -> str | None:
        if source.field_ref is not None:
            return field(pod, source.field_ref.field_path, facts)
        refs = (("Secret", source.secret_key_ref), ("ConfigMap", source.config_map_key_ref))
        for kind, ref in refs:
            if ref is not None:
                value = (await self._values(kind, ref.name) or {}).get(ref.key)
                if value is None and not ref.optional:
                    raise MissingError(f'{kind} "{ref.name}" has no key "{ref.key}"')
                return value
        raise MissingError("valueFrom names no source that is supported")

    async def _values(self, kind: str, name: str) -> dict[str, str] | None:
        if (kind, name) not in self._read:
            try:
                self._read[kind, name] = await self._fetch(kind, name)
            except errors.NotFound:
                self._read[kind, name] = None
        return self._read[kind, name]

    async def _fetch(self, kind: str, name: str) -> dict[str, str]:
        if kind == "ConfigMap":
            config = await self._store.get(kubernetes.ConfigMap, name, self._namespace)
            return config.data or {}
        secret = await self._store.get(kubernetes.Secret, name, self._namespace)
        return {
            key: base64.b64decode(value).decode(errors="surrogateescape")
            for key, value in (secret.data or {}).items()
        }


def unsupported(pod: kubernetes.Pod, images: Sequence[str]) -> str:
    """What of the pod this agent cannot run, in one sentence with the remedy; "" if it can."""
    if pod.spec.init_containers:
        return "init containers are not supported on this node; leave out spec.initContainers"
    if pod.spec.volumes:
        return "volumes are not supported on this node; leave out spec.volumes"
    for container in pod.spec.containers:
        if container.image not in images:
            return (
                f"container {container.name}: this node runs processes, not images "
                f"({container.image}); leave the image out"
            )
        if not container.command:
            return f"container {container.name} has no command, and there is no image to have one"
    return ""
