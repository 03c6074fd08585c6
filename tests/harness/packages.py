"""Programs that tests need and that the system's package manager has."""

from __future__ import annotations

import os
import shutil
import subprocess


def install(*names: str) -> str:
    """Installs Debian packages where this machine can; else says why not, "" if it did."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return f"install the package `{names[0]}` of your system"
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-q"],
                    ["apt-get", "install", "-qy", "--no-install-recommends", *names]):  # fmt: skip
        done = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
    return f"apt-get install {names[0]} failed: {done.stderr[-300:]}" if done.returncode else ""
