"""The server's own certificate authority and certificate, kept in STATE/tls.

TLS is always on: kubectl sends no token over plain HTTP. The `cryptography` library is loaded only
to create something. `made.json` describes what exists, so that a normal start needs neither the
library nor the parsing of certificates.
"""

from __future__ import annotations

import dataclasses
import datetime
import ipaddress
import os
import socket
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from windlass.kinds.values import times

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CA_LIFETIME = datetime.timedelta(days=3650)
LIFETIME = datetime.timedelta(days=365)
RENEW_BEFORE = datetime.timedelta(days=30)


@dataclasses.dataclass(frozen=True, slots=True)
class Files:
    """The paths of the certificate, its key and the authority that clients should trust."""

    certificate: Path
    key: Path
    authority: Path | None
    """None: the user provided the certificate, and clients know its authority."""

    def authority_pem(self) -> bytes | None:
        return self.authority.read_bytes() if self.authority else None


class _Made(msgspec.Struct):
    """The content of the folder."""

    names: list[str]
    expires: str
    authority_expires: str


def ensure(folder: Path, listen_host: str) -> Files:
    """A certificate for this machine that is valid for at least another month."""
    files = Files(folder / "server.crt", folder / "server.key", folder / "ca.crt")
    names = subject_names(listen_host)
    made = _read_made(folder)
    now = times.now()
    complete = all(path.exists() for path in (files.certificate, files.key, folder / "ca.crt"))
    covered = made is not None and complete and set(names) <= set(made.names)
    if made and covered and times.parse(made.expires) - now > RENEW_BEFORE:
        return files
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _make(folder, files, names, made, now)
    return files


def server_context(files: Files) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(files.certificate, files.key)
    return context


def subject_names(listen_host: str) -> list[str]:
    """Every name under which clients on this machine or its network may call the server."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    if listen_host not in ("", "0.0.0.0", "::"):  # noqa: S104 (compared, not bound)
        names.append(listen_host)
    return list(dict.fromkeys(names))


def _make(
    folder: Path, files: Files, names: list[str], made: _Made | None, now: datetime.datetime
) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec

    authority = _load_authority(folder, made, now)
    if authority is None:
        authority = new_authority(now)
        _write(folder / "ca.key", pem_key(authority[1]))
        _write(folder / "ca.crt", pem(authority[0]), mode=0o644)
    ca, ca_key = authority
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = sign_server(names, key, ca, ca_key, now)
    _write(files.key, pem_key(key))
    _write(files.certificate, pem(certificate), mode=0o644)
    described = _Made(names, times.seconds(now + LIFETIME), times.seconds(ca.not_valid_after_utc))
    _write(folder / "made.json", msgspec.json.encode(described), mode=0o644)


def _load_authority(
    folder: Path, made: _Made | None, now: datetime.datetime
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    """The authority that clients already trust, if it outlives the new certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    paths = folder / "ca.crt", folder / "ca.key"
    if made is None or not all(path.exists() for path in paths):
        return None
    if times.parse(made.authority_expires) - now < LIFETIME:
        return None
    ca = x509.load_pem_x509_certificate(paths[0].read_bytes())
    key = serialization.load_pem_private_key(paths[1].read_bytes(), password=None)
    return (ca, key) if isinstance(key, ec.EllipticCurvePrivateKey) else None


def new_authority(
    now: datetime.datetime,
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("windlass authority")
    ca = (
        _builder(name, name, key, now, CA_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return ca, key


def sign_server(
    names: list[str],
    key: ec.EllipticCurvePrivateKey,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    return (
        _builder(_name("windlass server"), ca.subject, key, now, LIFETIME)
        .add_extension(x509.SubjectAlternativeName([_alternative(n) for n in names]), False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    lifetime: datetime.timedelta,
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ a little
        .not_valid_after(now + lifetime)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _name(common: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _read_made(folder: Path) -> _Made | None:
    try:
        return msgspec.json.decode((folder / "made.json").read_bytes(), type=_Made)
    except (OSError, msgspec.DecodeError):
        return None


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Atomically: a reader sees the old file or the new one, never half of it."""
    temporary = path.with_name(path.name + ".new")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
