"""A PostgreSQL server of the tests' own: a fresh cluster in a temporary folder, on a socket there.

Its programs come from the system's package `postgresql`. As root the server runs as an unprivileged
user, as it insists on. `python -m tests.harness.postgres` installs the package where that is
possible; `make test` calls it.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

from tests.harness import packages

PACKAGE = "postgresql"
_USERS = ("postgres", "nobody")


class NoPostgresError(Exception):
    """Why there is none, for people."""


def programs() -> Path | None:
    """The folder with initdb and pg_ctl, of the newest version there is."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=_version)
    if found:
        return found[-1].parent
    beside = shutil.which("initdb")
    return Path(beside).resolve().parent if beside else None


def install() -> None:
    """Installs the package if it is missing and this machine can."""
    if programs() is not None:
        return
    problem = packages.install(PACKAGE)
    if programs() is None:
        raise NoPostgresError(f"PostgreSQL is not installed; {problem}")


class Postgres:
    """One server; `url(name)` makes a new empty database."""

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        """`durable`: what is acknowledged is on the disk; tests do without."""
        self._folder = folder
        self._options = f"-c listen_addresses='' -k {folder}" + ("" if durable else " -F")
        self._data = folder / "data"
        self._account = _account()
        found = programs()
        if found is None:
            raise NoPostgresError("PostgreSQL is not installed")
        self._bin = found

    def start(self) -> None:
        self._folder.chmod(0o755)
        for parent in self._folder.parents[:3]:
            if parent != Path("/tmp") and parent.owner() == "root":
                parent.chmod(parent.stat().st_mode | 0o011)
        self._data.mkdir()
        if self._account is not None:
            os.chown(self._data, self._account.pw_uid, self._account.pw_gid)
            os.chown(self._folder, self._account.pw_uid, self._account.pw_gid)
        self._run("initdb", "-D", str(self._data), "-U", "windlass", "-A", "trust", "-N")
        self._launch()

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")

    def restart(self) -> None:
        """As after a crash of the server."""
        self.stop()
        self._launch()

    def url(self, name: str) -> str:
        self._run("createdb", "-h", str(self._folder), "-U", "windlass", name)
        return f"postgresql://windlass@/{name}?host={self._folder}"

    def _launch(self) -> None:
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", str(self._data), "-l", log, "-o", self._options, "-w", "start")

    def _run(self, program: str, *arguments: str) -> None:
        account = self._account
        who = {} if account is None else {"user": account.pw_uid, "group": account.pw_gid}
        # Its output goes to a file: the server inherits it, and a pipe would never close.
        with (self._folder / f"{program}.out").open("w") as out:
            done = subprocess.run(
                [str(self._bin / program), *arguments], stdout=out, stderr=out, check=False,
                cwd=self._folder, extra_groups=[] if who else None, **who,
            )  # fmt: skip
        if done.returncode:
            told = (self._folder / f"{program}.out").read_text()[-500:]
            raise NoPostgresError(f"{program} failed: {told}")


def _account() -> pwd.struct_passwd | None:
    """The user that the server runs as; None: our own."""
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise NoPostgresError("PostgreSQL does not run as root, and there is no user nobody")


def _version(path: Path) -> int:
    name = path.parent.parent.name
    return int(name) if name.isdigit() else 0


if __name__ == "__main__":
    try:
        install()
    except NoPostgresError as problem:
        print(problem)
        sys.exit(1 if os.environ.get("CI") == "true" else 0)
