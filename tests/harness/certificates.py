"""Certificate authorities and certificates for a control plane that lives for one test run."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID_FOR = datetime.timedelta(days=30)
_CLOCK_SKEW = datetime.timedelta(minutes=5)


class Authority:
    """A certificate authority whose files are `<name>.crt` and `<name>.key` in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, f"windlass-test-{name}")]
        )
        usage = x509.KeyUsage(
            digital_signature=True, key_encipherment=True, key_cert_sign=True, crl_sign=True,
            content_commitment=False, data_encipherment=False, key_agreement=False,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        certificate = (
            self._builder(self._subject, self._key.public_key(), is_authority=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = _write(folder / f"{name}.crt", _pem(certificate))
        self.key = _write(folder / f"{name}.key", _private_pem(self._key))

    def issue_server(self, name: str, hosts: Sequence[str]) -> tuple[Path, Path]:
        """Certificate and key files of a server known under these names and addresses."""
        return self._issue(name, name, (), ExtendedKeyUsageOID.SERVER_AUTH, hosts)

    def issue_client(self, name: str, user: str, groups: Sequence[str] = ()) -> tuple[Path, Path]:
        """Certificate and key files with which a client is `user` in `groups`."""
        return self._issue(name, user, groups, ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def _issue(
        self,
        name: str,
        common_name: str,
        organizations: Sequence[str],
        usage: x509.ObjectIdentifier,
        hosts: Sequence[str],
    ) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, o) for o in organizations]
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name))
        builder = self._builder(x509.Name(attributes), key.public_key(), is_authority=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return (
            _write(self._folder / f"{name}.crt", _pem(certificate)),
            _write(self._folder / f"{name}.key", _private_pem(key)),
        )

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, *, is_authority: bool
    ) -> x509.CertificateBuilder:
        begin = datetime.datetime.now(datetime.UTC) - _CLOCK_SKEW
        constraints = x509.BasicConstraints(ca=is_authority, path_length=None)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + _VALID_FOR)
            .add_extension(constraints, critical=True)
        )


def write_service_account_keys(folder: Path) -> tuple[Path, Path]:
    """Private and public key files with which service-account tokens are signed and checked."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return _write(folder / "sa.key", _private_pem(key)), _write(folder / "sa.pub", public)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: PrivateKeyTypes) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path
