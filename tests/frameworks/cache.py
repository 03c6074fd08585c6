"""What this layer installs, and where it finds it again.

Outside of everybody's home: jobs of a team run under a user id of their own.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

FOLDER = Path(
    os.environ.get("WINDLASS_FRAMEWORKS_CACHE") or f"/var/tmp/windlass-frameworks-{os.getuid()}"
)
UV_CACHE = FOLDER / "uv"
TORCH = FOLDER / "debian-torch"


class CannotBeHadError(Exception):
    """Why something is missing here."""


def ensure() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True, mode=0o755)
    UV_CACHE.mkdir(exist_ok=True)
    UV_CACHE.chmod(0o1777)


def torch_environment() -> dict[str, str]:
    """Variables with which the system's Python finds Debian's PyTorch for CPUs, unpacked beside
    the system. PyPI's would bring five gigabytes of CUDA along."""
    ensure()
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not TORCH.is_dir():
            _unpack_torch()
    gnu = "usr/lib/*-linux-gnu"
    places = (gnu, "lib/*-linux-gnu", "usr/lib", f"{gnu}/blas", f"{gnu}/lapack")
    found = [str(path) for place in places for path in TORCH.glob(place)]
    return {
        "PYTHONPATH": str(TORCH / "usr/lib/python3/dist-packages"),
        "LD_LIBRARY_PATH": ":".join(found),
    }


def _unpack_torch() -> None:
    if not shutil.which("apt-get") or not Path("/usr/bin/python3").exists():
        raise CannotBeHadError("PyTorch for CPUs comes from Debian's python3-torch; no apt here")
    asked = subprocess.run(
        ["apt-get", "install", "--print-uris", "--yes", "--no-install-recommends", "python3-torch"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    addresses = [line.split("'")[1] for line in asked.stdout.splitlines() if line.startswith("'")]
    if asked.returncode or not addresses:
        raise CannotBeHadError(
            f"apt-get does not know python3-torch: {asked.stderr.strip()[-200:]}"
        )
    fresh = TORCH.with_name(f"{TORCH.name}.{os.getpid()}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    for address in addresses:
        package = fresh / "package.deb"
        got = subprocess.run(["curl", "-sSf", "-o", package, address], check=False)
        if got.returncode:
            raise CannotBeHadError(f"{address} cannot be fetched")
        subprocess.run(["dpkg", "-x", package, fresh], check=True)
        package.unlink()
    fresh.rename(TORCH)
