"""Small facts about the way to a server: proxy, impersonation headers, and what to say when it
cannot be reached; and requests as bytes. Called by `transport`, `light`, `exchange` and `ahead`.
"""

from __future__ import annotations

import os
import ssl
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence

import windlass
from windlass.store import errors
from windlass.store.kubernetes.access import Access, User

_NOT_READY = (
    "before all known HTTP paths have been installed",
    "There can be a delay between when CustomResourceDefinitions are created",
)


def is_not_ready(message: str) -> bool:
    """Whether an API server says that it has yet to learn a kind, or its fields for policies that
    fill some in: it does so when it has started or the kind is new. Nothing was carried out."""
    return any(each in message for each in _NOT_READY)


def proxy(access: Access) -> str | None:
    """The proxy of the kubeconfig, else of HTTPS_PROXY and NO_PROXY; never for loopback."""
    if access.cluster.proxy_url:
        return access.cluster.proxy_url
    server = urllib.parse.urlsplit(access.address)
    host = server.hostname or ""
    if _is_loopback(host):
        return None
    # Imported late: to the engine of this machine no proxy leads.
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


class Letterhead:
    """What all requests of one identity to one server begin with: put together once, because a
    scheduler writes a thousand requests a second."""

    def __init__(self, access: Access, authorization: str) -> None:
        url = urllib.parse.urlsplit(access.address)
        self._path = url.path
        self._told = {
            "Host": url.netloc.rpartition("@")[2],
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": f"windlass/{windlass.__version__}",
        }
        self._who = impersonation(access.user)
        if authorization:
            self._who.append(("Authorization", authorization))
        self._usual = _lines([*self._told.items(), *self._who])

    def encode(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        body: bytes | None = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """A request of HTTP/1.1 as it goes over the wire."""
        asked = urllib.parse.urlencode(list(query), quote_via=urllib.parse.quote) if query else ""
        target = self._path + path + (f"?{asked}" if asked else "")
        usual = self._usual
        if headers:
            usual = _lines([*{**self._told, **headers}.items(), *self._who])
        more = [("Content-Type", content_type)] if body is not None else []
        if body is not None or method in ("POST", "PUT", "PATCH"):
            more.append(("Content-Length", str(len(body or b""))))
        head = f"{_line(f'{method} {target} HTTP/1.1')}{usual}{_lines(more)}\r\n"
        return head.encode() + (body or b"")


def _lines(headers: Iterable[tuple[str, str]]) -> str:
    return "".join([_line(f"{name}: {value}") for name, value in headers])


def _line(text: str) -> str:
    if "\r" in text or "\n" in text:
        raise ValueError("a line break in a header")
    return f"{text}\r\n"


def unreachable(access: Access, error: Exception) -> errors.Unavailable:
    """One sentence on which server did not answer, why, and what to do."""
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
    where = f"the proxy {proxy} on the way to {access.address}"
    return errors.Unavailable(f"cannot reach {where}: {_reason(error)}; check proxy-url")


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    number = error.errno if isinstance(error, ConnectionError) else None
    if number:
        return os.strerror(number).lower()
    return str(error) or "the connection broke"


def _is_loopback(host: str) -> bool:
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
