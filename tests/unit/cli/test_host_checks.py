"""The doctor's checks, on machines laid out in a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.cli.invoking import invoke
from windlass.cli.engine import host_checks
from windlass.cli.engine.host_checks import Check, Machine
from windlass.cli.lib import exit_codes


def lay_out(root: Path, files: dict[str, str]) -> Machine:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if content == "/" else path.write_text(content)
    return Machine(state=root / "state", root=root)


DEVICES = [
    ("none", {}, {"nvidia": "missing", "amd": "missing", "npu": "missing", "rdma": "missing"}),
    ("two nvidia", {"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidiactl": ""}, {"nvidia": "ok"}),
    ("nvidia driver only", {"proc/modules": "nvidia 1 0 - Live\n"}, {"nvidia": "limited"}),
    (
        "an amd gpu beside the cpu node",
        {
            "dev/kfd": "",
            "sys/class/kfd/kfd/topology/nodes/0/properties": "simd_count 0\n",
            "sys/class/kfd/kfd/topology/nodes/1/properties": "cpu_cores_count 0\nsimd_count 440\n",
        },
        {"amd": "ok"},
    ),
    ("amd driver only", {"dev/kfd": ""}, {"amd": "limited"}),
    ("ascend", {"dev/davinci0": "", "dev/davinci_manager": ""}, {"npu": "ok"}),
    ("accel", {"dev/accel/accel0": ""}, {"npu": "ok"}),
    ("infiniband", {"sys/class/infiniband/mlx5_0": "/"}, {"rdma": "ok"}),
]


@pytest.mark.parametrize(("files", "states"), [d[1:] for d in DEVICES], ids=[d[0] for d in DEVICES])
def test_devices(tmp_path: Path, files: dict[str, str], states: dict[str, str]) -> None:
    found = {check.name: check for check in host_checks.devices(lay_out(tmp_path, files))}
    assert {name: found[name].state for name in states} == states


def test_devices_are_counted(tmp_path: Path) -> None:
    found = next(host_checks.devices(lay_out(tmp_path, {"dev/nvidia0": "", "dev/nvidia11": ""})))
    assert found.found.startswith("2 ")


CGROUPS = [
    ("v2", {"sys/fs/cgroup/cgroup.controllers": "cpuset cpu memory pids"}, "ok", "v2"),
    ("v2 without memory", {"sys/fs/cgroup/cgroup.controllers": "cpu"}, "missing", "no cpu"),
    ("v1", {"sys/fs/cgroup/cpu": "/", "sys/fs/cgroup/memory": "/"}, "ok", "v1"),
    ("none", {}, "missing", "no cpu"),
]


@pytest.mark.parametrize(
    ("files", "state", "found"), [c[1:] for c in CGROUPS], ids=[c[0] for c in CGROUPS]
)
def test_cgroups(tmp_path: Path, files: dict[str, str], state: str, found: str) -> None:
    check = host_checks.cgroups(lay_out(tmp_path, files))
    assert (check.state, check.found.startswith(found)) == (state, True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_cgroups_that_may_not_be_written(tmp_path: Path) -> None:
    laid = lay_out(tmp_path, {"sys/fs/cgroup/cgroup.controllers": "cpu memory"})
    (tmp_path / "sys/fs/cgroup").chmod(0o555)
    assert host_checks.cgroups(laid).state == "limited"


def test_looking_at_cgroups_leaves_nothing_behind(tmp_path: Path) -> None:
    laid = lay_out(tmp_path, {"sys/fs/cgroup/cpu": "/", "sys/fs/cgroup/memory": "/"})
    host_checks.cgroups(laid)
    assert os.listdir(tmp_path / "sys/fs/cgroup/cpu") == []


@pytest.mark.parametrize(
    ("euid", "mounts", "state"),
    [(0, True, "ok"), (0, False, "limited"), (1000, True, "limited")],
)
def test_teams_are_kept_apart_only_by_a_root_that_may_mount(
    tmp_path: Path, euid: int, mounts: bool, state: str
) -> None:
    laid = lay_out(tmp_path, {"proc/sys/user/max_user_namespaces": "0"})
    assert host_checks.isolation(laid, euid, lambda: mounts).state == state


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({"run/systemd/timesync/synchronized": ""}, "ok"),
        ({"proc/17/comm": "chronyd\n"}, "ok"),
        ({"proc/17/comm": "chronyd-helper\n"}, "limited"),
    ],
)
def test_clock(tmp_path: Path, files: dict[str, str], state: str) -> None:
    assert host_checks.clock(lay_out(tmp_path, files)).state == state


def test_a_state_folder_that_does_not_exist_yet_is_judged_by_the_one_above(tmp_path: Path) -> None:
    laid = Machine(state=tmp_path / "not" / "yet")
    assert host_checks.durability(laid).state in ("ok", "limited")
    assert host_checks.disk(laid).found.endswith(str(laid.state))
    assert os.listdir(tmp_path) == []


def test_everything_that_is_not_ok_says_what_it_means() -> None:
    for check in host_checks.checks(Machine(Path("/nowhere"))):
        assert check.found
        assert check.state == "ok" or check.meaning


def test_doctor_reports_each_check_to_programs() -> None:
    result = invoke("doctor", "--json")
    assert result.code == exit_codes.OK
    names = [check["name"] for check in result.json["checks"]]
    assert {"python", "cgroups", "shm", "fuse", "fsync", "kubernetes", "uv"} <= set(names)
    assert len(names) == len(set(names))
    assert result.json["canStart"] is True


def test_doctor_fails_only_where_the_engine_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Check("sqlite", "missing", "none", "The engine cannot store its objects.", "Get it.")
    monkeypatch.setattr(host_checks, "sqlite", lambda: broken)
    result = invoke("doctor")
    assert result.code == exit_codes.FAILED
    assert "Remedy: Get it." in result.out
    assert "cannot start here: sqlite" in result.out
