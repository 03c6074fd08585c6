"""The server's certificate and the authority behind it: made at the first installation, kept in
Secrets, renewed by upgrades.

The authority's key is in a Secret that none of our parts may read; only who installs needs it.
When the authority itself is renewed, clients trust the old one, too, until the next time.
"""

from __future__ import annotations

import datetime

from windlass.install.render import Certificates
from windlass.server import tls

_RENEW_BEFORE = tls.LIFETIME / 2
"""A certificate is good for a year: who upgrades twice a year never sees one run out."""


def ensure(
    known: Certificates | None, names: list[str], now: datetime.datetime, *, rotate: bool = False
) -> Certificates:
    """What is known, as long as it is good for the names and a while; else made anew."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    authority = None
    bundle = ""
    if known is not None:
        ca = x509.load_pem_x509_certificate(known.authority.encode())
        ca_key = serialization.load_pem_private_key(known.authority_key.encode(), password=None)
        lasts = ca.not_valid_after_utc - now
        if isinstance(ca_key, ec.EllipticCurvePrivateKey) and lasts > tls.LIFETIME and not rotate:
            authority = ca, ca_key
            if _is_good(known.certificate, names, now):
                return known
            bundle = known.bundle
        elif lasts > datetime.timedelta():
            bundle = known.authority
    if authority is None:
        authority = tls.new_authority(now)
        bundle = tls.pem(authority[0]).decode() + bundle
    ca, ca_key = authority
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = tls.sign_server(names, key, ca, ca_key, now)
    return Certificates(
        authority=tls.pem(ca).decode(),
        authority_key=tls.pem_key(ca_key).decode(),
        bundle=bundle,
        certificate=tls.pem(certificate).decode(),
        key=tls.pem_key(key).decode(),
    )


def expires(pem: str) -> datetime.datetime:
    from cryptography import x509

    return x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc


def _is_good(pem: str, names: list[str], now: datetime.datetime) -> bool:
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(pem.encode())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    carried = {str(each.value) for each in found}
    return set(names) <= carried and certificate.not_valid_after_utc - now > _RENEW_BEFORE
