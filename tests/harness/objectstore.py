"""S3-compatible storage of the tests' own: Versity's gateway over a temporary folder, with TLS.

A real one of another project: it checks signatures, and lists as S3 does. `python -m
tests.harness.objectstore` builds it once into the cache beside the Kubernetes binaries; where it is
not built, tests that need it are skipped.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from tests.harness import build, certificates
from tests.harness.processes import Process, Stoppable, free_ports

ACCESS_KEY, SECRET_KEY = "windlass-test", "a-secret-of-the-tests"
BUCKET = "platform"


class NoStoreError(Exception):
    """Why there is none, for people."""


class ObjectStore(Stoppable):
    """One server; `keys` is a folder as a Secret is mounted."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        try:
            program = build.binary(build.OBJECT_STORE.name)
        except build.BuildError:
            raise NoStoreError(
                "no S3-compatible storage is built: python -m tests.harness.objectstore"
            ) from None
        (self._port,) = free_ports(1)
        self._host = host
        self.data, self.keys = folder / "data", folder / "keys"
        for each in (self.data / BUCKET, folder / "meta", self.keys):
            each.mkdir(parents=True)
        authority = certificates.Authority(folder, "storage")
        certificate, key = authority.issue_server("gateway", [host])
        (self.keys / "access-key").write_text(ACCESS_KEY)
        (self.keys / "secret-key").write_text(SECRET_KEY)
        (self.keys / "ca.crt").write_text(authority.certificate.read_text())
        self.process = Process(
            "versitygw",
            [program, "--quiet", "--access", ACCESS_KEY, "--secret", SECRET_KEY,
             "--port", f"{host}:{self._port}", "--cert", certificate, "--key", key,
             "posix", "--sidecar", folder / "meta", self.data],
            folder / "versitygw.log",
        )  # fmt: skip

    def url(self, prefix: str, bucket: str = BUCKET) -> str:
        return f"s3://{bucket}/{prefix}?endpoint=https://{self._host}:{self._port}"

    def start(self) -> None:
        self.process.start()
        self.process.wait_ready(self._listens)

    def stop(self) -> None:
        self.process.stop()

    def _listens(self) -> bool:
        try:
            socket.create_connection((self._host, self._port), timeout=1).close()
        except OSError:
            return False
        return True


if __name__ == "__main__":
    try:
        build.ensure(lambda text: print(text, flush=True), [build.OBJECT_STORE])
    except build.BuildError as problem:
        print(problem, file=sys.stderr)
        sys.exit(1)
