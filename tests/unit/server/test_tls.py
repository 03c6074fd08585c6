"""Our own certificates: good for this machine, kept, renewed in time, replaced when needed."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from windlass.kinds.values import times
from windlass.server.auth import certificates


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def names(certificate: x509.Certificate) -> set[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in found}


def test_a_new_folder_gets_an_authority_and_a_certificate_of_it(tmp_path: Path) -> None:
    files = certificates.ensure(tmp_path / "tls", "10.1.2.3")
    assert files.authority is not None
    certificate, authority = load(files.certificate), load(files.authority)
    certificate.verify_directly_issued_by(authority)
    assert {"localhost", "127.0.0.1", "::1", "10.1.2.3"} <= names(certificate)
    assert files.key.stat().st_mode & 0o777 == 0o600
    certificates.server_context(files)
    client = ssl.create_default_context(cafile=str(files.authority))
    assert client.cert_store_stats()["x509_ca"] == 1


def test_a_good_certificate_is_kept(tmp_path: Path) -> None:
    before = certificates.ensure(tmp_path, "127.0.0.1").certificate.read_bytes()
    assert certificates.ensure(tmp_path, "127.0.0.1").certificate.read_bytes() == before


def test_another_address_gets_a_new_certificate_of_the_same_authority(tmp_path: Path) -> None:
    first = certificates.ensure(tmp_path, "127.0.0.1")
    authority = first.authority_pem()
    before = first.certificate.read_bytes()
    second = certificates.ensure(tmp_path, "10.0.0.9")
    assert second.certificate.read_bytes() != before
    assert second.authority_pem() == authority
    assert "10.0.0.9" in names(load(second.certificate))


@pytest.mark.parametrize(("days", "renewed", "same_authority"), [
    (300, False, True), (340, True, True), (3300, True, False),
])  # fmt: skip
def test_certificates_are_renewed_before_they_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, renewed: bool, same_authority: bool
) -> None:
    files = certificates.ensure(tmp_path, "127.0.0.1")
    before, authority = files.certificate.read_bytes(), files.authority_pem()
    later = times.now() + datetime.timedelta(days=days)
    monkeypatch.setattr(times, "now", lambda: later)
    again = certificates.ensure(tmp_path, "127.0.0.1")
    assert (again.certificate.read_bytes() != before) is renewed
    assert (again.authority_pem() == authority) is same_authority
