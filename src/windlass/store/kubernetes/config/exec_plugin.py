"""Credentials printed by another program (`exec` in a kubeconfig: cloud log-ins, OIDC helpers).

Speaks client.authentication.k8s.io v1 and v1beta1. The program runs when its credential is first
needed, when that has expired, and when the server refuses it; never twice at once.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from windlass.store import errors
from windlass.store.kubernetes.config import credentials
from windlass.store.kubernetes.config import model as accesses
from windlass.store.kubernetes.config.credentials import Credential
from windlass.store.kubernetes.config.model import Access, ExecPlugin

API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_CLUSTER_EXTENSION = "client.authentication.k8s.io/exec"
_TIME_LIMIT = 120.0
"""Time limit in seconds of a program that cannot prompt the user."""


def credentials_of(access: Access) -> credentials.Credentials:
    """The credentials of the plug-in if the kubeconfig user has one and no token or password; else
    the configured ones."""
    user = access.user
    if user.exec is not None and not (user.token or user.token_file or user.username):
        return PluginCredentials(access, user.exec)
    return credentials.ConfiguredCredentials(access)


class _Status(msgspec.Struct, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _Status | None = None


def _utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class PluginCredentials:
    """Runs the plug-in and caches its credential until it expires or the server rejects it."""

    def __init__(
        self,
        access: Access,
        plugin: ExecPlugin,
        now: Callable[[], datetime.datetime] = _utc_now,
    ) -> None:
        self._access = access
        self._plugin = plugin
        self._now = now
        self._one_at_a_time = asyncio.Lock()
        self._credential: Credential | None = None
        self._expires: datetime.datetime | None = None

    async def current(self) -> Credential:
        async with self._one_at_a_time:
            expired = self._expires is not None and self._now() >= self._expires
            if self._credential is None or expired:
                self._credential, self._expires = await self._run()
            return self._credential

    async def renew(self, refused: Credential) -> bool:
        async with self._one_at_a_time:
            if self._credential == refused:
                self._credential = None
            return True

    async def _run(self) -> tuple[Credential, datetime.datetime | None]:
        interactive = _interactive(self._plugin)
        arguments = [self._plugin.command, *(self._plugin.args or ())]
        try:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                env=_environment(self._access, self._plugin, interactive),
                stdin=None if interactive else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=None if interactive else asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise _failed(self._plugin, error.strerror or str(error), hint=True) from None
        output, complaint = await _finish(process, self._plugin, interactive)
        if process.returncode != 0:
            complaints = " ".join((complaint or b"").decode(errors="replace").split())[-500:]
            reason = f"exit code {process.returncode}" + (f": {complaints}" if complaints else "")
            raise _failed(self._plugin, reason)
        status = _parse(output, self._plugin)
        return self._credential_in(status), _instant(status.expiration_timestamp, self._plugin)

    def _credential_in(self, status: _Status) -> Credential:
        pair = None
        if status.client_certificate_data:
            pair = (status.client_certificate_data.encode(), status.client_key_data.encode())
        return Credential(
            authorization=f"Bearer {status.token}" if status.token else "",
            certificate=pair or accesses.certificate(self._access),
        )


async def _finish(
    process: asyncio.subprocess.Process, plugin: ExecPlugin, interactive: bool
) -> tuple[bytes, bytes | None]:
    try:
        async with asyncio.timeout(None if interactive else _TIME_LIMIT):
            return await process.communicate()
    except TimeoutError:
        raise _failed(plugin, f"no output within {_TIME_LIMIT:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _interactive(plugin: ExecPlugin) -> bool:
    """Whether the program may prompt the user at the terminal."""
    if plugin.api_version not in API_VERSIONS:
        raise _failed(
            plugin, f'apiVersion "{plugin.api_version}" is not one of {" and ".join(API_VERSIONS)}'
        )
    mode = plugin.interactive_mode or ("" if plugin.api_version.endswith("/v1") else "IfAvailable")
    terminal = sys.stdin is not None and sys.stdin.isatty()
    match mode:
        case "Never":
            return False
        case "IfAvailable":
            return terminal
        case "Always" if terminal:
            return True
        case "Always":
            raise _failed(plugin, "it needs a terminal (interactiveMode Always) and there is none")
    raise _failed(
        plugin, f'interactiveMode is "{mode}" and must be Never, IfAvailable or Always with v1'
    )


def _environment(access: Access, plugin: ExecPlugin, interactive: bool) -> dict[str, str]:
    spec: dict[str, Any] = {"interactive": interactive}
    if plugin.provide_cluster_info:
        spec["cluster"] = _cluster_info(access)
    request = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    chosen = {variable.name: variable.value for variable in plugin.env or ()}
    return {**os.environ, **chosen, "KUBERNETES_EXEC_INFO": msgspec.json.encode(request).decode()}


def _cluster_info(access: Access) -> dict[str, Any]:
    cluster = access.cluster
    authority = accesses.pem(
        cluster.certificate_authority_data,
        cluster.certificate_authority,
        "certificate-authority",
        access.source,
    )
    configs = {entry.name: entry.extension for entry in cluster.extensions or ()}
    info = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": authority,
        "proxy-url": cluster.proxy_url,
        "config": configs.get(_CLUSTER_EXTENSION),
    }
    return {key: value for key, value in info.items() if value}


def _parse(output: bytes, plugin: ExecPlugin) -> _Status:
    try:
        answer = msgspec.json.decode(output, type=_ExecCredential)
    except msgspec.DecodeError as error:
        raise _failed(plugin, f"it printed no ExecCredential ({error})") from None
    if answer.kind != "ExecCredential" or answer.api_version != plugin.api_version:
        raise _failed(
            plugin,
            f"it printed {answer.api_version} {answer.kind}, not {plugin.api_version} "
            f"ExecCredential",
        )
    status = answer.status or _Status()
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise _failed(plugin, "it printed a client certificate without its key, or the reverse")
    if not status.token and not status.client_certificate_data:
        raise _failed(plugin, "it printed neither a token nor a client certificate")
    return status


def _instant(timestamp: str | None, plugin: ExecPlugin) -> datetime.datetime | None:
    if not timestamp:
        return None
    try:
        instant = datetime.datetime.fromisoformat(timestamp)
    except ValueError:
        raise _failed(plugin, f'expirationTimestamp "{timestamp}" is not RFC 3339') from None
    return instant if instant.tzinfo else instant.replace(tzinfo=datetime.UTC)


def _failed(plugin: ExecPlugin, reason: str, *, hint: bool = False) -> errors.Unauthorized:
    advice = plugin.install_hint.strip() if hint else ""
    advice = advice or "run it by hand to see what is wrong, then log in again"
    return errors.Unauthorized(
        f"the credential plug-in `{plugin.command}` of the kubeconfig failed: {reason}; {advice}"
    )
