"""Limits that no job asks for: processes, open files, core dumps, memory priority, disk."""

import os
import signal
from types import SimpleNamespace

import pytest

from tests.unit.agent import nodes
from tests.unit.agent.nodes import ended
from windlass.agent.node import privileges
from windlass.agent.pods import disk_usage
from windlass.agent.runtime import cgroups, job_limits

MIB = 1 << 20


def means(**limits) -> dict:
    return {"limits": job_limits.JobLimits(**limits)}


# --- of a process


async def test_open_files_core_dumps_and_memory_priority(node):
    await node.restart(**means(files=256))
    await node.create(
        "ulimit -n; ulimit -Hn; cat /proc/self/oom_score_adj; sh -c 'kill -SEGV $$' 2>/dev/null; ls"
    )
    pod = await node.phase("Succeeded")
    assert node.text(pod).splitlines() == ["256", "256", "500"]
    work = node.folder / "pods" / pod.uid / "root/work"
    assert list(work.iterdir()) == []


@nodes.as_root
async def test_a_job_with_a_user_of_its_own_raises_no_limit(node):
    users = privileges.NamespaceUsers(node.folder)
    able = privileges.Abilities("user", mounts=True)
    await node.restart(abilities=able, user_of=users.of, **means(files=256))
    await node.create(
        "(ulimit -Hn 512) 2>/dev/null || echo kept; "
        "(echo -900 > /proc/self/oom_score_adj) 2>/dev/null || echo kept; "
        "(ulimit -Hc unlimited) 2>/dev/null || echo kept"
    )
    assert node.text(await node.phase("Succeeded")) == "kept\nkept\nkept\n"


@nodes.as_root
async def test_a_fork_bomb_stays_within_its_container(node, tmp_path):
    groups = cgroups.find(tmp_path)
    able = privileges.Abilities("user", mounts=True, cgroups=groups)
    try:
        await node.restart(abilities=able, **means(processes=40))
        await node.create(
            "i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i+1)); done 2>/dev/null; wait"
        )
        pod = await node.until(lambda pod: pod.status.phase in ("Running", "Failed"))
        group = groups.group(f"{pod.uid}.c")
        assert (
            group.paths["pids" if groups.version == 1 else ""] / "pids.max"
        ).read_text() == "40\n"
        assert ended(await node.phase("Failed")).exit_code != 0
    finally:
        await node.stop()
        for name in groups.names():
            groups.group(name).remove()
        groups.close()


def test_all_containers_together_leave_process_ids_to_the_machine(tmp_path):
    (tmp_path / "pid_max").write_text("4000\n")
    assert job_limits.default(tmp_path / "pid_max").processes == 1000
    assert job_limits.all_containers(tmp_path / "pid_max") == 3000
    base = tmp_path / "base"
    base.mkdir()
    cgroups.Cgroups(2, {"": base}, ("pids",)).limit_all(3000)
    assert (base / "pids.max").read_text() == "3000"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["disk=1Gi"], (None, 1 << 30)),
        (["files=100", "processes=1k"], (100, None)),
    ],
)
def test_limits_are_read(words, expected):
    limits = job_limits.parse(words)
    files, disk = expected
    assert limits.disk == disk
    assert limits.files == (files or job_limits.FILES)


@pytest.mark.parametrize("word", ["disk", "disk=", "disk=x", "memory=1Gi", "files=2", "disk=10"])
def test_bad_limits_are_refused(word):
    with pytest.raises(job_limits.Malformed):
        job_limits.parse([word])


# --- disk


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(disk_usage, "EVERY", 0.02)
    monkeypatch.setattr(disk_usage, "_IDLE_PARTS", 1)


WRITE = "dd if=/dev/zero of={} bs=1M count=4 2>/dev/null; while :; do sleep 0.05; done"
WAYS = {
    "work": WRITE.format("f"),
    "tmp": WRITE.format("$TMPDIR/f"),
    "home": f"cd $WINDLASS_ROOT/home; {WRITE.format('f')}",
    "volume": WRITE.format("$WINDLASS_ROOT/v/f"),
    "deep": f"mkdir -p a/b/c/d; cd a/b/c/d; {WRITE.format('f')}",
    "deleted": "exec 9>f; rm f; dd if=/dev/zero bs=1M count=4 2>/dev/null >&9; "
               "while :; do sleep 0.05; done",
    "empty files": "i=0; while [ $i -lt 600 ]; do : > $i; i=$((i+1)); done; "
                   "while :; do sleep 0.05; done",
    "log": "head -c 4000000 /dev/zero | tr '\\0' 'x'; while :; do sleep 0.05; done",
    "closed": f"mkdir c; chmod 0 c; {WRITE.format('f')}",
    "unmeasurable": "i=0; while [ $i -lt 400 ]; do mkdir d; cd d; i=$((i+1)); done; "
                    "while :; do sleep 0.05; done",
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
async def test_a_job_with_too_many_files_ends_out_of_disk(node, quick, way):
    from windlass.kinds.types import core

    await node.restart(**means(disk=2 * MIB))
    await node.create(
        WAYS[way], volumes=[{"name": "v", "emptyDir": {}}],
        volume_mounts=[core.VolumeMount(name="v", mount_path="/windlass/v")],
    )  # fmt: skip
    end = ended(await node.phase("Failed"))
    assert (end.reason, end.exit_code) == ("OutOfDisk", 128 + signal.SIGKILL)
    assert "remove files" in end.message


async def test_a_job_below_its_limit_is_left_alone_and_one_that_states_less_is_not(node, quick):
    from windlass.kinds.types import core

    await node.restart(**means(disk=64 * MIB))
    script = WRITE.format("f").replace("while :", "until test -e {here}/go")
    await node.create(script, "fine")
    asked = core.ResourceRequirements(limits={"ephemeral-storage": "2Mi"})
    await node.create(WRITE.format("f"), "stated", resources=asked)
    end = ended(await node.phase("Failed", "stated"))
    assert end.reason == "OutOfDisk"
    assert "--disk" in end.message
    (node.folder / "go").touch()
    assert (await node.phase("Succeeded", "fine")).status.phase == "Succeeded"


async def test_links_lead_nowhere(node):
    outside = node.folder / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"x" * 4 * MIB)
    await node.create("ln -s {here}/outside d; ln -s {here}/outside/f f; echo ok")
    pod = await node.phase("Succeeded")
    folder = node.folder / "pods" / pod.uid
    assert disk_usage.used_by(folder, {}, 1 << 40) < MIB


async def test_hard_links_count_once(tmp_path):
    (tmp_path / "f").write_bytes(b"x" * MIB)
    before = disk_usage._tree(tmp_path, 1 << 40)
    for number in range(5):
        os.link(tmp_path / "f", tmp_path / f"f{number}")
    assert disk_usage._tree(tmp_path, 1 << 40) == before


async def test_when_the_disk_is_nearly_full_the_pod_with_the_most_files_ends(
    node, quick, monkeypatch
):
    least = disk_usage._LEAST_FREE
    monkeypatch.setattr(disk_usage, "space", lambda _: (1 << 40, least - 8 * MIB))
    await node.create("while :; do sleep 0.05; done", "small")
    await node.phase("Running", "small")
    await node.create(WRITE.format("f").replace("count=4", "count=64"), "large")
    end = ended(await node.phase("Failed", "large"))
    assert end.reason == "OutOfDisk"
    assert "nearly full" in end.message
    assert (await node.phase("Running", "small")).status.phase == "Running"


def test_a_pod_that_is_being_removed_hides_no_other_one(tmp_path, monkeypatch):
    pods = [tmp_path / name for name in ("gone", "large")]
    ended_pods = []
    context = SimpleNamespace(folder=tmp_path, limits=job_limits.JobLimits(disk=MIB))
    watch = disk_usage.DiskWatch(context)
    monkeypatch.setattr(watch, "_running", lambda: ((each, {}) for each in pods))
    monkeypatch.setattr(disk_usage, "_end", lambda folder, *_, **__: ended_pods.append(folder))
    pods[1].mkdir()
    (pods[1] / "file").write_bytes(b"x" * 2 * MIB)
    watch.look()
    assert ended_pods == [pods[1]]
