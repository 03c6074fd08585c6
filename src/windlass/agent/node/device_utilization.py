"""The utilization of this node's devices, as their drivers report it.

Read through nvidia-smi for NVIDIA and sysfs for AMD. A device without a reported value is absent;
nothing is estimated. Devices have the node's names: `gpu/0` and so on, NVIDIA's first.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

_QUERY = ("--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits")
_TIMEOUT = 10.0


def devices(root: Path = Path("/"), search: str | None = None) -> dict[str, float]:
    """Device -> utilization from 0 to 1 in the driver's last sampling interval. `search` replaces
    PATH."""
    nvidia = sum(bool(re.fullmatch(r"nvidia\d+", each.name)) for each in root.glob("dev/nvidia*"))
    found = _nvidia(search) if nvidia else {}
    for number, part in enumerate(_amd(root)):
        if part is not None:
            found[f"gpu/{nvidia + number}"] = part
    return found


def _nvidia(search: str | None) -> dict[str, float]:
    program = shutil.which("nvidia-smi", path=search)
    if program is None:
        return {}
    try:
        result = subprocess.run(
            [program, *_QUERY], capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    # A partitioned device reports [N/A].
    lines = re.findall(r"^(\d+), (\d+)$", result.stdout, re.MULTILINE)
    return {f"gpu/{index}": min(1.0, int(percent) / 100) for index, percent in lines}


def _amd(root: Path) -> list[float | None]:
    """Utilization in the order of the cards; None for a card that does not report it."""
    cards = [
        each
        for each in root.glob("sys/class/drm/card*")
        if re.fullmatch(r"card\d+", each.name) and _text(each / "device/vendor") == "0x1002"
    ]
    cards.sort(key=lambda each: int(each.name[4:]))
    texts = [_text(each / "device/gpu_busy_percent") for each in cards]
    return [min(1.0, int(text) / 100) if text.isdecimal() else None for text in texts]


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
