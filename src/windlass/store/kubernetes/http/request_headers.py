"""Requests as bytes with their headers; the proxy and the impersonation headers of a server; the
errors of a server that cannot be reached. Shared by the modules of this package.
"""

from __future__ import annotations

import os
import ssl
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence

from windlass.store import errors
from windlass.store.kubernetes.config.model import Access, User
from windlass.version import VERSION

_NOT_READY = (
    "before all known HTTP paths have been installed",
    "There can be a delay between when CustomResourceDefinitions are created",
)


def is_not_ready(message: str) -> bool:
    """Whether the message means that an API server does not know a kind yet, or its schema for
    mutating policies, because the server has just started or the kind is new. The request was not
    executed."""
    return any(each in message for each in _NOT_READY)


def is_unreached(body: bytes) -> bool:
    """Whether a response with status 503 means that the cluster's API server could not connect to
    the server of an aggregated API: it restarts. The request was not executed."""
    text = body[:300].decode(errors="replace").strip()
    return text == "service unavailable" or text.startswith(
        "error trying to reach service: dial tcp"
    )


def proxy(access: Access) -> str | None:
    """The proxy of the kubeconfig, else of HTTPS_PROXY and NO_PROXY; never for loopback."""
    if access.cluster.proxy_url:
        return access.cluster.proxy_url
    server = urllib.parse.urlsplit(access.address)
    host = server.hostname or ""
    if is_loopback(host):
        return None
    # Imported here: the engine on this machine is never behind a proxy.
    from urllib import request

    chosen = request.getproxies_environment()
    if request.proxy_bypass_environment(host, chosen):  # type: ignore[attr-defined]
        return None
    if _in_networks(host, chosen.get("no", "")):
        return None
    return chosen.get(server.scheme)


def impersonation(user: User) -> list[tuple[str, str]]:
    if not user.impersonate:
        return []
    headers = [("Impersonate-User", user.impersonate)]
    if user.impersonate_uid:
        headers.append(("Impersonate-Uid", user.impersonate_uid))
    headers += [("Impersonate-Group", group) for group in user.impersonate_groups or ()]
    for key, values in (user.impersonate_extra or {}).items():
        name = f"Impersonate-Extra-{urllib.parse.quote(key, safe='')}"
        headers += [(name, value) for value in values]
    return headers


class RequestHeaders:
    """The headers of all requests of one identity to one server, encoded once, because a scheduler
    sends a thousand requests a second."""

    def __init__(self, access: Access, authorization: str) -> None:
        url = urllib.parse.urlsplit(access.address)
        self._path = url.path
        self._common = {
            "Host": url.netloc.rpartition("@")[2],
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": f"windlass/{VERSION}",
        }
        self._identity = impersonation(access.user)
        if authorization:
            self._identity.append(("Authorization", authorization))
        self._encoded = _lines([*self._common.items(), *self._identity])

    def encode(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        body: bytes | None = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """An HTTP/1.1 request as bytes."""
        asked = urllib.parse.urlencode(list(query), quote_via=urllib.parse.quote) if query else ""
        target = self._path + path + (f"?{asked}" if asked else "")
        encoded = self._encoded
        if headers:
            encoded = _lines([*{**self._common, **headers}.items(), *self._identity])
        more = [("Content-Type", content_type)] if body is not None else []
        if body is not None or method in ("POST", "PUT", "PATCH"):
            more.append(("Content-Length", str(len(body or b""))))
        head = f"{_line(f'{method} {target} HTTP/1.1')}{encoded}{_lines(more)}\r\n"
        return head.encode() + (body or b"")


def _lines(headers: Iterable[tuple[str, str]]) -> str:
    return "".join([_line(f"{name}: {value}") for name, value in headers])


def _line(text: str) -> str:
    if "\r" in text or "\n" in text:
        raise ValueError("a line break in a header")
    return f"{text}\r\n"


def unreachable(access: Access, error: Exception) -> errors.Unavailable:
    """The error of a server that cannot be reached: which one, why, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError | ssl.CertificateError):
        reason = getattr(error, "verify_message", "") or str(error)
        return errors.Unavailable(
            f"the certificate of {access.address} is not trusted ({reason}); check "
            f"certificate-authority and server of the context in {access.source}"
        )
    return errors.Unavailable(
        f"cannot reach the API server at {access.address}: {_reason(error)}; {access.remedy}"
    )


def proxy_unreachable(access: Access, proxy: str, error: Exception) -> errors.Unavailable:
    where = f"the proxy {proxy} for {access.address}"
    return errors.Unavailable(f"cannot reach {where}: {_reason(error)}; check proxy-url")


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    number = error.errno if isinstance(error, ConnectionError) else None
    if number:
        return os.strerror(number).lower()
    return str(error) or "the connection broke"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    if host == "127.0.0.1":
        return True
    import ipaddress

    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _in_networks(host: str, no_proxy: str) -> bool:
    """NO_PROXY may name networks such as 10.0.0.0/8, which the standard library does not read."""
    import ipaddress

    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for part in no_proxy.split(","):
        try:
            if "/" in part and address in ipaddress.ip_network(part.strip(), strict=False):
                return True
        except ValueError:
            continue
    return False
