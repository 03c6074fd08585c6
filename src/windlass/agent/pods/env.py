"""The environment and the command of a container, with all references resolved.

As in Kubernetes: envFrom first, then env; `$(NAME)` is replaced by a variable defined before it,
`$$(NAME)` is the literal text. Reads Secrets and ConfigMaps through the store; writes nothing.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from typing import Any

from windlass.kinds.types import core
from windlass.kinds.values import quantity
from windlass.store import errors, interface

INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
    # Access to packages from this machine: mirrors, proxies, certificates.
    "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS",
    "UV_INDEX_STRATEGY", "UV_INSECURE_HOST", "UV_OFFLINE", "UV_PYTHON_INSTALL_MIRROR",
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_TRUSTED_HOST", "PIP_CERT",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
)  # fmt: skip
"""Variables of the agent's environment that containers inherit: settings of the machine only."""

_CREDENTIALS = re.compile(r"://[^\s/@]*(@[^\s/@]*)*@")
_REFERENCE = re.compile(r"\$(\$|\([A-Za-z_][A-Za-z0-9_.-]*\))")


class MissingError(Exception):
    """An object or key that the pod refers to does not exist; it may be created later."""


async def build(
    sources: Sources,
    pod: core.Pod,
    container: core.Container,
    facts: Mapping[str, str],
    *,
    usual: Mapping[str, str] | None = None,
    fixed: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """All variables of a container. `facts`: fields that the node provides, such as status.podIP;
    `usual`: defaults, which the pod may override; `fixed`: variables that it cannot override."""
    built = {**(inherited() if usual is None else usual), **(fixed or {})}
    for source in container.env_from or ():
        for name, value in (await sources.everything(source)).items():
            built[source.prefix + name] = value
    for variable in container.env or ():
        if variable.name in (fixed or {}):
            continue
        if variable.value_from is None:
            built[variable.name] = expand(variable.value, built)
            continue
        found = await sources.one(variable.value_from, pod, container, facts)
        if found is not None:
            built[variable.name] = found
    return {**built, **(fixed or {})}


def inherited() -> dict[str, str]:
    return {name: os.environ[name] for name in INHERITED if name in os.environ}


def without_credentials(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables without users and passwords in URLs: they are the engine owner's, for package
    indexes and proxies. A team that needs some takes them from a Secret of its own."""
    return {name: _CREDENTIALS.sub("://", value) for name, value in variables.items()}


def command(container: core.Container, environment: Mapping[str, str]) -> list[str]:
    """Program and arguments, with `$(NAME)` replaced."""
    arguments = [*(container.command or ()), *(container.args or ())]
    return [expand(word, environment) for word in arguments]


def expand(text: str, known: Mapping[str, str]) -> str:
    """Replaces `$(NAME)` by its value, or leaves it if the name is unknown; `$$` becomes `$`."""

    def fill(match: re.Match[str]) -> str:
        inner = match[1]
        return "$" if inner == "$" else known.get(inner[1:-1], match[0])

    return _REFERENCE.sub(fill, text)


def field(pod: core.Pod, path: str, facts: Mapping[str, str]) -> str:
    """The value of a field of the pod, by its downward API path."""
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


def resource_field(pod: core.Pod, ref: Mapping[str, Any], container: core.Container | None) -> str:
    """`limits.memory` and the like, in units of the divisor, rounded up as Kubernetes does."""
    name = ref.get("containerName") or (container.name if container else "")
    known = [*(pod.spec.init_containers or ()), *pod.spec.containers]
    chosen = next((each for each in known if each.name == name), None)
    if chosen is None:
        raise MissingError(f'resourceFieldRef names container "{name}", which does not exist')
    which, _, resource = str(ref.get("resource", "")).partition(".")
    resources = chosen.resources or core.ResourceRequirements()
    amounts = (resources.limits if which == "limits" else resources.requests) or {}
    value = quantity.nano(amounts.get(resource, 0))
    divisor = quantity.nano(ref.get("divisor") or 0) or quantity.NANO
    return str(-(-value // divisor))


class Sources:
    """Secrets and ConfigMaps of a namespace, each read once."""

    def __init__(self, store: interface.Store, namespace: str) -> None:
        self._store = store
        self._namespace = namespace
        self._read: dict[tuple[str, str], dict[str, bytes] | None] = {}

    async def everything(self, source: core.EnvFrom) -> dict[str, str]:
        for kind, ref in (("Secret", source.secret_ref), ("ConfigMap", source.config_map_ref)):
            if ref is not None:
                values = await self.binary(kind, ref.name)
                if values is None and not ref.optional:
                    raise MissingError(f'{kind} "{ref.name}" not found')
                return {key: _text(value) for key, value in (values or {}).items()}
        return {}

    async def one(
        self,
        source: core.EnvVarSource,
        pod: core.Pod,
        container: core.Container,
        facts: Mapping[str, str],
    ) -> str | None:
        if source.field_ref is not None:
            return field(pod, source.field_ref.field_path, facts)
        if source.resource_field_ref is not None:
            return resource_field(pod, source.resource_field_ref, container)
        refs = (("Secret", source.secret_key_ref), ("ConfigMap", source.config_map_key_ref))
        for kind, ref in refs:
            if ref is not None:
                value = (await self.binary(kind, ref.name) or {}).get(ref.key)
                if value is None and not ref.optional:
                    raise MissingError(f'{kind} "{ref.name}" has no key "{ref.key}"')
                return None if value is None else _text(value)
        raise MissingError("valueFrom has no supported source")

    async def binary(self, kind: str, name: str) -> dict[str, bytes] | None:
        """All values of a Secret or ConfigMap; None if it does not exist."""
        if (kind, name) not in self._read:
            try:
                self._read[kind, name] = await self._fetch(kind, name)
            except errors.NotFound:
                self._read[kind, name] = None
        return self._read[kind, name]

    async def _fetch(self, kind: str, name: str) -> dict[str, bytes]:
        if kind == "ConfigMap":
            config = await self._store.get(core.ConfigMap, name, self._namespace)
            plain = {key: text.encode() for key, text in (config.data or {}).items()}
            return plain | _decoded(config.binary_data)
        secret = await self._store.get(core.Secret, name, self._namespace)
        return _decoded(secret.data)


def _decoded(values: Mapping[str, str] | None) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in (values or {}).items()}


def _text(value: bytes) -> str:
    return value.decode(errors="surrogateescape")
