"""TLS contexts for an API server: trusted authorities and the client certificate.

A transport creates one each time the client certificate changes.
"""

from __future__ import annotations

import pathlib
import ssl

from windlass.store.kubernetes.config import model as accesses
from windlass.store.kubernetes.config.model import Access, KubeconfigError


def context(access: Access, certificate: tuple[bytes, bytes] | None) -> ssl.SSLContext:
    """The context that verifies the server and presents `certificate` (PEM chain, PEM key)."""
    cluster = access.cluster
    authority = accesses.pem(
        cluster.certificate_authority_data,
        cluster.certificate_authority,
        "certificate-authority",
        access.source,
    )
    try:
        made = ssl.create_default_context(cadata=authority.decode() if authority else None)
    except (ssl.SSLError, ValueError) as error:
        raise KubeconfigError(
            f"certificate-authority in {access.source} has no valid certificate: {error}"
        ) from None
    # Private CAs of clusters often lack the extensions that strict checking requires (the default
    # since Python 3.13). kubectl accepts such certificates.
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if cluster.insecure_skip_tls_verify:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        _present(made, certificate, access.source)
    return made


def _present(made: ssl.SSLContext, certificate: tuple[bytes, bytes], source: str) -> None:
    import tempfile  # here: with a token, no client certificate is used

    # OpenSSL reads certificates from files only; these are removed at the end of this call.
    with tempfile.TemporaryDirectory(prefix="windlass-tls-") as folder:
        chain, key = pathlib.Path(folder, "chain.pem"), pathlib.Path(folder, "key.pem")
        chain.write_bytes(certificate[0])
        key.touch(mode=0o600)
        key.write_bytes(certificate[1])
        try:
            # The empty password prevents a prompt for the password of an encrypted key.
            made.load_cert_chain(chain, key, password="")
        except ssl.SSLError as error:
            raise KubeconfigError(
                f"the client certificate and key from {source} cannot be used: {error.reason}"
            ) from None
