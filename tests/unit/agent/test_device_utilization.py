"""What drivers say of their devices, from a machine that is laid out in a folder and a stand-in for
NVIDIA's own program: there is no such hardware here."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.agent.metrics import usage
from windlass.agent.node import device_utilization
from windlass.agent.runtime import cgroups


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    return tmp_path


def nvidia_says(root: Path, words: str) -> str:
    """A folder for PATH with a program that answers the question which the driver's answers."""
    for number in range(3):
        (root / f"dev/nvidia{number}").touch()
    (root / "dev/nvidiactl").touch()
    folder = root / "bin"
    folder.mkdir()
    program = folder / "nvidia-smi"
    asked = "--query-gpu=index,utilization.gpu --format=csv,noheader,nounits"
    program.write_text(f'#!/bin/sh\n[ "$*" = "{asked}" ] || exit 2\n{words}\n')
    program.chmod(0o755)
    return str(folder)


def amd_card(root: Path, number: int, busy: str | None, vendor: str = "0x1002") -> None:
    folder = root / f"sys/class/drm/card{number}/device"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    if busy is not None:
        (folder / "gpu_busy_percent").write_text(f"{busy}\n")


def test_only_the_output_of_the_drivers_is_reported(root: Path) -> None:
    path = nvidia_says(root, 'echo "0, 37"; echo "1, [N/A]"; echo "2, 100"')
    amd_card(root, 0, None, vendor="0x8086")  # a screen's
    amd_card(root, 10, "5")
    amd_card(root, 2, None)
    (root / "sys/class/drm/card10-HDMI-A-1").mkdir()
    assert device_utilization.devices(root, path) == {"gpu/0": 0.37, "gpu/2": 1.0, "gpu/4": 0.05}


@pytest.mark.parametrize("words", ["exit 9", "echo nonsense", "echo '0, '"])
def test_a_driver_that_does_not_answer_is_not_measured(root: Path, words: str) -> None:
    assert device_utilization.devices(root, nvidia_says(root, words)) == {}


def test_a_machine_without_devices_has_nothing_to_tell(root: Path) -> None:
    assert device_utilization.devices(root, "") == {}


def test_the_pages_of_a_node_tell_it() -> None:
    measured = usage.NodeMeasurement(
        "n1", "2026-01-01T00:00:00Z", cgroups.CgroupUsage(), [], {"gpu/0": 0.37}
    )
    assert usage.summary(measured)["node"]["windlass"]["devices"] == {"gpu/0": 0.37}
    assert 'windlass_device_active_ratio{device="gpu/0"} 0.37' in usage.exposition(measured)
