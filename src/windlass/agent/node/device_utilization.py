"""How much of the time each device of this node worked, where its driver says so.

NVIDIA's driver is asked through its own nvidia-smi, AMD's through sysfs. What a driver does not say
is absent: nobody guesses. Devices are named as the node names them: `gpu/0`, NVIDIA's first.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

_ASK = ("--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits")
_PATIENCE = 10.0


def devices(root: Path = Path("/"), search: str | None = None) -> dict[str, float]:
    """Device -> the part of the time, from 0 to 1, in the driver's last moment. `search`: instead
    of PATH."""
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
        told = subprocess.run(
            [program, *_ASK], capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    # A device in partitions says [N/A].
    lines = re.findall(r"^(\d+), (\d+)$", told.stdout, re.MULTILINE)
    return {f"gpu/{index}": min(1.0, int(percent) / 100) for index, percent in lines}


def _amd(root: Path) -> list[float | None]:
    """In the order of their cards; None: this one does not say."""
    cards = [
        each
        for each in root.glob("sys/class/drm/card*")
        if re.fullmatch(r"card\d+", each.name) and _text(each / "device/vendor") == "0x1002"
    ]
    cards.sort(key=lambda each: int(each.name[4:]))
    told = [_text(each / "device/gpu_busy_percent") for each in cards]
    return [min(1.0, int(text) / 100) if text.isdecimal() else None for text in told]


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
