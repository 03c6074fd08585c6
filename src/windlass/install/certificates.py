"""The server's certificate and its authority: created at the first installation, stored in Secrets,
renewed by upgrades.

The authority's key is in a Secret that no installed component may read; only `windlass install` and
`upgrade` need it. After a renewal of the authority, clients also trust the old one until the next
renewal.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from windlass.install import names
from windlass.install.manifests.render import Certificates
from windlass.server.auth import certificates

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_RENEW_BEFORE = certificates.LIFETIME / 2
"""Certificates are valid for a year: with two upgrades a year none expires."""
METRICS_NAMES = [f"{part}.{names.SYSTEM}.svc" for part in (names.SCHEDULER, names.CONTROLLERS)]


def ensure(
    known: Certificates | None, served: list[str], now: datetime.datetime, *, rotate: bool = False
) -> Certificates:
    """The known certificates if they are valid for the names and long enough; else new ones.
    `served`: names of the server. The certificate of /metrics has fixed names."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    authority = None
    bundle = ""
    pairs = {"server": ("", ""), "metrics": ("", "")}
    if known is not None:
        ca = x509.load_pem_x509_certificate(known.authority.encode())
        ca_key = serialization.load_pem_private_key(known.authority_key.encode(), password=None)
        lasts = ca.not_valid_after_utc - now
        if (
            isinstance(ca_key, ec.EllipticCurvePrivateKey)
            and lasts > certificates.LIFETIME
            and not rotate
        ):
            authority = ca, ca_key
            bundle = known.bundle
            pairs["server"] = known.certificate, known.key
            pairs["metrics"] = known.metrics_certificate, known.metrics_key
        elif lasts > datetime.timedelta():
            bundle = known.authority
    if authority is None:
        authority = certificates.new_authority(now)
        bundle = certificates.pem(authority[0]).decode() + bundle
    server = _pair(pairs["server"], served, authority, now)
    metrics = _pair(pairs["metrics"], METRICS_NAMES, authority, now)
    return Certificates(
        certificates.pem(authority[0]).decode(), certificates.pem_key(authority[1]).decode(),
        bundle, *server, *metrics,
    )  # fmt: skip


def _pair(
    known: tuple[str, str],
    served: list[str],
    authority: tuple[x509.Certificate, ec.EllipticCurvePrivateKey],
    now: datetime.datetime,
) -> tuple[str, str]:
    """A certificate and its key: the known ones if they are good."""
    from cryptography.hazmat.primitives.asymmetric import ec

    if known[0] and _is_good(known[0], served, now):
        return known
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = certificates.sign_server(served, key, *authority, now)
    return certificates.pem(certificate).decode(), certificates.pem_key(key).decode()


def expires(pem: str) -> datetime.datetime:
    from cryptography import x509

    return x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc


def _is_good(pem: str, served: list[str], now: datetime.datetime) -> bool:
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(pem.encode())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    carried = {str(each.value) for each in found}
    return set(served) <= carried and certificate.not_valid_after_utc - now > _RENEW_BEFORE
