import os

import pytest

from windlass.agent.node import inventory

MEMINFO = "MemTotal:        1000 kB\nMemFree: 1 kB\n"
CORES = len(os.sched_getaffinity(0)) * 1000


def root(tmp_path, **files):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name.replace("__", "/").replace("_max", ".max")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 1024000),
        ({"memory_max": "max\n"}, 1024000),
        ({"memory_max": "4096\n"}, 4096),
        ({"memory_max": "9999999999\n"}, 1024000),
        ({"memory__memory.limit_in_bytes": "8192\n"}, 8192),
        ({"memory__memory.limit_in_bytes": "9223372036854771712\n"}, 1024000),
    ],
)
def test_memory_is_the_smaller_of_what_there_is_and_what_is_allowed(tmp_path, files, expected):
    assert inventory.memory_bytes(root(tmp_path, **files)) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, CORES),
        ({"cpu_max": "max 100000\n"}, CORES),
        ({"cpu_max": "50000 100000\n"}, 500),
        ({"cpu__cpu.cfs_quota_us": "-1\n", "cpu__cpu.cfs_period_us": "100000\n"}, CORES),
        ({"cpu__cpu.cfs_quota_us": "25000\n", "cpu__cpu.cfs_period_us": "100000\n"}, 250),
    ],
)
def test_cpu_is_the_smaller_of_what_there_is_and_what_is_allowed(tmp_path, files, expected):
    assert inventory.cpu_milli(root(tmp_path, **files)) == expected


def test_this_machine_has_something():
    assert inventory.cpu_milli() > 0
    assert inventory.memory_bytes() > 1 << 20


@pytest.mark.parametrize(
    ("host", "name"), [("Node_1.Local", "node-1.local"), ("---", "node"), ("a", "a")]
)
def test_the_hosts_name_becomes_an_objects_name(monkeypatch, host, name):
    monkeypatch.setattr(inventory.socket, "gethostname", lambda: host)
    assert inventory.node_name() == name


def test_devices_are_what_the_drivers_show(tmp_path):
    for name in ("dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/davinci0", "dev/null"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    amd = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for number, simd in enumerate((0, 440)):
        (amd / str(number)).mkdir(parents=True)
        (amd / str(number) / "properties").write_text(f"cpu 1\nsimd_count {simd}\n")
    assert inventory.devices(tmp_path) == {"gpu": 3, "npu": 1}
    assert inventory.devices(tmp_path / "none") == {}


def test_the_model_of_a_gpu_is_a_label(tmp_path):
    place = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0"
    place.mkdir(parents=True)
    (place / "information").write_text("Model: \t NVIDIA A100-SXM4-80GB\nIRQ: 1\n")
    assert inventory.gpu_model(tmp_path) == "a100-sxm4-80gb"
    assert inventory.gpu_model(tmp_path / "none") == ""
