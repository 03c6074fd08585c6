"""A server on a disk that forgets what was not synced, and the power switch.

Used by the power-loss tests. The disk is powerloss.c, compiled at test time and loaded into the
server; `PowerSwitch.cut` kills the server and leaves its state folder as such a disk would.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.embedded import EmbeddedServer

SOURCE = Path(__file__).with_name("powerloss.c")


def library(folder: Path) -> Path:
    """The compiled disk; skips the test where there is no C compiler, except under CI=true."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no C compiler (cc, gcc or clang) was found; CI must have one")
        pytest.skip("the power-loss tests need a C compiler (cc, gcc or clang); none was found")
    built = folder / "powerloss.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, "-o", built, SOURCE, "-ldl", "-lpthread"], check=True)
    return built


class PowerSwitch:
    """The disk under one server's state folder."""

    def __init__(self, folder: Path, *, module: str = "windlass.server", seed: int = 0) -> None:
        self._shadow = folder / "shadow"
        self.server = EmbeddedServer(folder / "state", module=module)
        self._boots = 0
        self._seed = seed
        self.server.environment |= {
            "LD_PRELOAD": str(library(folder)),
            "POWERLOSS_ROOT": str(self.server.state),
            "POWERLOSS_SHADOW": str(self._shadow),
        }
        self._on_disk()

    def trace(self, file: Path, *, sync_seconds: float) -> None:
        """Has writes and syncs written down, and makes each sync take at least so long."""
        self.server.environment |= {
            "POWERLOSS_TRACE": str(file),
            "POWERLOSS_DELAY_US": str(int(sync_seconds * 1e6)),
        }

    def weaken(self, synchronous: str) -> None:
        """Has `unsafe_server` set SQLite's `synchronous` so: the control of an experiment."""
        self.server.environment["UNSAFE_SYNCHRONOUS"] = synchronous

    def cut(self) -> None:
        """The power fails: of the state folder only what was synced is left."""
        self.server.kill()
        self._forget()
        self._on_disk()

    def _forget(self) -> None:
        state = self.server.state
        log = state.with_suffix(".log")
        with log.open("ab") as kept:  # the server's output is ours, not part of its state
            kept.write((state / "test-server.log").read_bytes())
        shutil.rmtree(state)
        self._restore(state, "")
        shutil.rmtree(self._shadow)

    def _restore(self, folder: Path, relative: str) -> None:
        folder.mkdir(mode=0o700)
        names = self._names(relative)
        for line in names.read_text().splitlines() if names.exists() else ():
            inode, kind, name = line.split(" ", 2)
            if kind == "d":
                self._restore(folder / name, f"{relative}/{name}".lstrip("/"))
                continue
            (folder / name).touch(mode=0o600)
            data = self._shadow / "data" / inode
            if data.exists():  # an entry without synced data is an empty file
                shutil.copyfile(data, folder / name)

    def _on_disk(self) -> None:
        """What is in the state folder now was there before the machine started."""
        self._boots += 1
        self.server.environment |= {
            "POWERLOSS_SEED": str(self._seed + self._boots),
            "POWERLOSS_EAGER": str((0, 30, 90)[self._boots % 3]),
        }
        for part in ("data", "names"):
            (self._shadow / part).mkdir(parents=True)
        state = self.server.state
        for folder in (state, *(path for path in state.rglob("*") if path.is_dir())):
            lines = []
            for entry in folder.iterdir():
                inode = entry.stat().st_ino
                lines.append(f"{inode} {'d' if entry.is_dir() else 'f'} {entry.name}\n")
                if entry.is_file():
                    shutil.copyfile(entry, self._shadow / "data" / str(inode))
            relative = "" if folder == state else str(folder.relative_to(state))
            self._names(relative).write_text("".join(lines))

    def _names(self, relative: str) -> Path:
        return self._shadow / "names" / ("@" + relative.replace("/", "@"))
