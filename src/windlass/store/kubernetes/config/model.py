"""The address of an API server and the identity to use: the parts of a kubeconfig as structs.

`kubeconfig` and `incluster` create an `Access`; `credentials`, `tls` and the transports read it.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import pathlib
from typing import Any

import msgspec

from windlass.store import errors


class KubeconfigError(errors.BadRequest):
    """The configuration of the server is missing, invalid or contradictory."""


class Extension(msgspec.Struct, rename="kebab", kw_only=True, frozen=True):
    name: str
    extension: Any = None


class Cluster(msgspec.Struct, rename="kebab", kw_only=True, frozen=True):
    """The address of the server and how to verify it."""

    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    extensions: list[Extension] | None = None


class ExecVariable(msgspec.Struct, rename="kebab", kw_only=True, frozen=True):
    name: str
    value: str = ""


class ExecPlugin(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A program that prints credentials."""

    api_version: str
    command: str
    args: list[str] | None = None
    env: list[ExecVariable] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""


class User(msgspec.Struct, rename="kebab", kw_only=True, frozen=True):
    """The credentials of the client. Inline data takes precedence over a file."""

    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    exec: ExecPlugin | None = None
    auth_provider: Any = None
    impersonate: str = msgspec.field(default="", name="as")
    impersonate_uid: str = msgspec.field(default="", name="as-uid")
    impersonate_groups: list[str] | None = msgspec.field(default=None, name="as-groups")
    impersonate_extra: dict[str, list[str]] | None = msgspec.field(
        default=None, name="as-user-extra"
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Access:
    """One server and one identity."""

    cluster: Cluster
    user: User
    namespace: str = "default"
    context: str = ""
    source: str = ""
    """The file or folder it was read from, for messages."""
    engine: str = ""
    """The state folder, if this is the administrator's access to an embedded engine."""
    remedy: str = "check that the server runs and that this is the right context"
    """What the user should do when the server does not respond."""

    @property
    def address(self) -> str:
        return self.cluster.server.rstrip("/")


def pem(data: str, path: str, field: str, source: str) -> bytes | None:
    """The PEM text given inline (base64) or as a file; None if neither is given."""
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise KubeconfigError(
                f"{field}-data in {source} is not base64 ({error}); write it again with "
                f"`kubectl config set-cluster` or `set-credentials --embed-certs`"
            ) from None
    if not path:
        return None
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise KubeconfigError(
            f"{field} in {source} names {path}, which cannot be read: {error.strerror}"
        ) from None


def certificate(access: Access) -> tuple[bytes, bytes] | None:
    """The client certificate and key that a kubeconfig gives inline or as files."""
    user, source = access.user, access.source
    chain = pem(user.client_certificate_data, user.client_certificate, "client-certificate", source)
    key = pem(user.client_key_data, user.client_key, "client-key", source)
    return (chain, key) if chain and key else None


def authorization(access: Access) -> str:
    """The value of the Authorization header; "" if there is none."""
    user = access.user
    token = user.token
    if user.token_file:
        try:
            token = pathlib.Path(user.token_file).read_text().strip()
        except OSError as error:
            raise KubeconfigError(
                f"the token file {user.token_file} cannot be read: {error.strerror}"
            ) from None
    if token:
        return f"Bearer {token}"
    if user.username:
        pair = f"{user.username}:{user.password}".encode()
        return f"Basic {base64.b64encode(pair).decode()}"
    return ""
