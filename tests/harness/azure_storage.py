"""Azure Blob Storage of the tests' own: Microsoft's Azurite from npm, with TLS.

It is installed once into the cache, by `make soak`; CI tests the same code on S3 (`objectstore`).
There is no stand-in for Google Cloud Storage in a registry that accepts the uploads of obstore:
fake-gcs-server (1.56) refuses objects that are put through the XML API.
"""

from __future__ import annotations

import base64
import email.utils
import hmac
import shutil
import socket
import ssl
import subprocess
import urllib.request
from pathlib import Path

from tests.harness import build, certificates
from tests.harness.processes import Process, Stoppable, free_ports

AZURITE = "3.37.0"
CONTAINER = "platform"
_ACCOUNT = "devstoreaccount1"
_ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Azurite's documented account and key; the same for each installation."""


class AzureStorage(Stoppable):
    """One server on loopback; `url` and `keys` (a folder as a Secret is mounted) are what a user
    gives to `windlass install`."""

    def __init__(self, folder: Path) -> None:
        (self._port,) = free_ports(1)
        self.keys = folder / "keys"
        self.keys.mkdir(parents=True)
        authority = certificates.Authority(folder, "storage")
        certificate, key = authority.issue_server("azurite", ["127.0.0.1"])
        (self.keys / "ca.crt").write_text(authority.certificate.read_text())
        (self.keys / "account-key").write_text(_ACCOUNT_KEY)
        self.process = Process(
            "azurite",
            [_azurite(), "--blobHost", "127.0.0.1", "--blobPort", str(self._port),
             "--cert", certificate, "--key", key,
             "--location", folder, "--silent", "--skipApiVersionCheck"],
            folder / "azurite.log",
        )  # fmt: skip

    @property
    def _endpoint(self) -> str:
        return f"https://127.0.0.1:{self._port}/{_ACCOUNT}"

    def url(self, prefix: str, container: str = CONTAINER) -> str:
        return f"az://{container}/{prefix}?account={_ACCOUNT}&endpoint={self._endpoint}"

    def start(self) -> None:
        self.process.start()
        self.process.wait_ready(self._listens)
        self._create_container()

    def stop(self) -> None:
        self.process.stop()

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True

    def _create_container(self) -> None:
        # Signed by hand: the container is all that the tests need of Azure's own client.
        headers = {
            "x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2024-11-04",
        }  # fmt: skip
        signed = "\n".join(
            ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in sorted(headers.items())),
             f"/{_ACCOUNT}/{_ACCOUNT}/{CONTAINER}", "restype:container"]
        )  # fmt: skip
        code = hmac.digest(base64.b64decode(_ACCOUNT_KEY), signed.encode(), "sha256")
        headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(code).decode()}"
        address = f"{self._endpoint}/{CONTAINER}?restype=container"
        request = urllib.request.Request(address, headers=headers, method="PUT")
        trust = ssl.create_default_context(cafile=str(self.keys / "ca.crt"))
        urllib.request.urlopen(request, context=trust).close()


def _azurite() -> Path:
    """The command of Azurite, installed once without install scripts."""
    folder = build.cache_dir().parent / f"azurite-{AZURITE}"
    command = folder / "node_modules" / ".bin" / "azurite-blob"
    if not command.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise build.BuildError("Azurite needs npm: install Node.js 20 or newer.")
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", f"azurite@{AZURITE}"],
            cwd=folder, check=True, capture_output=True,
        )  # fmt: skip
    return command
