"""The callers that come through the cluster's API server: authentication by request headers.

The API server authenticates with a client certificate of the authority in the ConfigMap
`extension-apiserver-authentication` in kube-system, and sends the user of the request in headers.
Headers without that certificate are ignored: any client could set them.
"""

from __future__ import annotations

import dataclasses
import urllib.parse
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from windlass.kinds.types import core
from windlass.server.auth.identity import AUTHENTICATED, Identity

NAMESPACE, NAME = "kube-system", "extension-apiserver-authentication"


class NotConfigured(Exception):
    """The cluster does not aggregate APIs; the message gives what is missing."""


@dataclasses.dataclass(frozen=True, slots=True)
class FrontProxy:
    """The content of the ConfigMap."""

    authority: str
    """PEM. Empty: the cluster has no aggregation layer."""
    names: tuple[str, ...]
    """Allowed common names of its certificate; none: any that the authority signed."""
    user_headers: tuple[str, ...]
    group_headers: tuple[str, ...]
    extra_prefixes: tuple[str, ...]

    @staticmethod
    def read(found: core.ConfigMap) -> FrontProxy:
        data = found.data or {}
        authority = data.get("requestheader-client-ca-file", "")
        if not authority:
            raise NotConfigured(
                f"ConfigMap {NAME} in {NAMESPACE} names no requestheader-client-ca-file: this "
                "cluster has no aggregation layer; start kube-apiserver with "
                "--requestheader-client-ca-file and --proxy-client-cert-file"
            )
        return FrontProxy(
            authority,
            _listed(data, "requestheader-allowed-names"),
            _listed(data, "requestheader-username-headers") or ("X-Remote-User",),
            _listed(data, "requestheader-group-headers") or ("X-Remote-Group",),
            _listed(data, "requestheader-extra-headers-prefix") or ("X-Remote-Extra-",),
        )

    def identify(self, request: web.BaseRequest) -> Identity | None:
        """The user on whose behalf the API server calls; None for other callers."""
        transport = request.transport
        certificate = transport.get_extra_info("peercert") if transport is not None else None
        if not certificate or not self._trusts(certificate):
            return None
        headers = request.headers
        users = (headers.get(name, "") for name in self.user_headers)
        user = next((user for user in users if user), "")
        if not user:
            return None
        groups = [group for name in self.group_headers for group in headers.getall(name, ())]
        return Identity(
            user, tuple(dict.fromkeys([*groups, AUTHENTICATED])), extra=self._extra(request)
        )

    def _trusts(self, certificate: Mapping[str, Any]) -> bool:
        if not self.names:
            return True
        subject = (pair for part in certificate.get("subject", ()) for pair in part)
        return any(key == "commonName" and value in self.names for key, value in subject)

    def _extra(self, request: web.BaseRequest) -> tuple[tuple[str, tuple[str, ...]], ...]:
        found: dict[str, list[str]] = {}
        for name, value in request.headers.items():
            for prefix in self.extra_prefixes:
                if name.lower().startswith(prefix.lower()):
                    key = urllib.parse.unquote(name[len(prefix) :].lower())
                    found.setdefault(key, []).append(value)
        return tuple((key, tuple(values)) for key, values in sorted(found.items()))


def _listed(data: Mapping[str, str], key: str) -> tuple[str, ...]:
    try:
        return tuple(msgspec.json.decode(data.get(key) or "[]", type=list[str]))
    except msgspec.DecodeError:
        return ()
