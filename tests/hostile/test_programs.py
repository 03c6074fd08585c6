"""What a job's own program tries on the machine of the embedded engine, when the engine runs as
root: other teams' jobs, the engine's files and processes, the machine. One row for each program.

The state folder of this engine is reachable (its parents are open), so that its own modes are what
closes it.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.objects import ok
from tests.harness.waiting import until
from tests.hostile import judge
from tests.hostile.attack import API, CORE, run
from tests.hostile.engines import EmbeddedWorld
from tests.hostile.worlds import CANARIES

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="jobs have users of their own only under root"),
    pytest.mark.timeout(300),
]


def _python(*lines: str) -> str:
    """A program of Python, with the variables in `e`."""
    text = "; ".join(("import ctypes, os, socket, ssl, sys", "e = os.environ", *lines))
    return f"python3 -c '{text}'"


PROGRAMS: dict[str, str] = {
    "reads the store": "cat $STATE/*.db $STATE/*.db-wal",
    "reads the administrator's kubeconfig": "cat $STATE/kubeconfig",
    "reads the key of pods' tokens": "cat $STATE/pod-tokens.key",
    "reads the audit log": "cat $STATE/audit.log",
    "reads archived logs": "ls $STATE/kept $STATE/agent/kept",
    "reads uploaded code": "ls $STATE/blobs",
    "reads the victim's folder": "ls $STATE/agent/pods/$VICTIM_UID/root",
    "reads the victim's log": "cat $STATE/agent/pods/$VICTIM_UID/containers/*/*/log.0",
    "writes into the state folder": "touch $STATE/hostile",
    "writes among the pods": "mkdir $STATE/agent/pods/hostile",
    "reads the victim's variables": "cat /proc/$VICTIM/environ",
    "reads the victim's command": "cat /proc/$VICTIM/cmdline | grep canary",
    "enters the victim's folder by its process": "ls /proc/$VICTIM/cwd/",
    "enters the victim's root by its process": "ls /proc/$VICTIM/root/",
    "reads the victim's memory": "head -c 1 /proc/$VICTIM/mem",
    "reads the victim's files by their handles": "ls /proc/$VICTIM/fd/",
    "stops the victim": "kill -9 $VICTIM",
    "stops the agent": "kill -9 $AGENT",
    "stops the server": "kill -9 $SERVER",
    "pauses the server": "kill -STOP $SERVER",
    "traces the victim": _python(
        "sys.exit(ctypes.CDLL(None).ptrace(16, int(e[\"VICTIM\"]), 0, 0) != 0)"
    ),
    "reads the server's variables": "cat /proc/$SERVER/environ",
    "reads the server's memory map": "cat /proc/$SERVER/maps | grep heap",
    "speaks to the agent": _python(
        "s = socket.socket(socket.AF_UNIX)",
        "names = [os.path.join(d, n) for d, _, f in os.walk(e[\"STATE\"]) for n in f]",
        "[s.connect(n) for n in names if n.endswith(\"socket\")] or sys.exit(1)",
    ),
    "becomes root": _python("os.setuid(0)"),
    "becomes the victim's user": _python("os.setuid(int(e[\"VICTIM_USER\"]))"),
    "gets a group": _python("os.setgroups([0])"),
    "keeps rights of a copied shell": "cp /bin/sh s && chmod 4755 s && ./s -p -c 'cat /etc/shadow'",
    "mounts the machine's files": "mkdir -p m && mount --bind / m",
    "mounts proc": "mkdir -p p && mount -t proc proc p",
    "makes a device": "mknod disk b 8 0",
    "changes the root": "chroot / id",
    "writes a system file": "echo evil >> /etc/passwd",
    "writes the machine's settings": "echo 1 > /proc/sys/kernel/core_pattern",
    "presses a key of the machine": "echo h > /proc/sysrq-trigger",
    "reads the shadow file": "cat /etc/shadow",
    "reads root's files": "cat /root/.bashrc /root/.kube/config",
    "leaves its cgroup": "echo $$ > /sys/fs/cgroup/cgroup.procs",
    "raises its priority": _python("os.nice(-10)"),
    "spares itself when memory ends": "echo -1000 > /proc/self/oom_score_adj",
    "changes the clock": "date -s 2030-01-01",
    "opens raw sockets": _python("socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"),
    "binds a port of the system": _python("socket.socket().bind((\"0.0.0.0\", 99))"),
    "binds the server's port": _python(
        "socket.socket().bind((\"127.0.0.1\", int(e[\"URL\"].rpartition(\":\")[2])))"
    ),
    "asks the server without a token": _python(
        "import urllib.request as r",
        "r.urlopen(e[\"URL\"] + \"/api/v1/secrets\", context=ssl._create_unverified_context())",
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Told:
    code: int
    text: str


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedWorld]:
    folder = tmp_path_factory.mktemp("machine")
    for path in (folder, *folder.parents[:2]):
        path.chmod(0o755)
    made = EmbeddedWorld(folder)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def told(world: EmbeddedWorld) -> dict[str, Told]:
    """All programs in one job of team red, and what became of each."""
    engine = world._engine
    victim = _process_of(world.values["pod_uid"])
    variables = {
        "STATE": str(engine.server.state), "VICTIM": str(victim),
        "VICTIM_UID": world.values["pod_uid"], "AGENT": str(engine.agent.pid),
        "SERVER": str(engine.server.process.pid), "URL": world.admin.url,
        "VICTIM_USER": str(Path(f"/proc/{victim}").stat().st_uid),
    }  # fmt: skip
    lines = [f"export {name}='{value}'" for name, value in variables.items()]
    for number, program in enumerate(PROGRAMS.values()):
        lines.append(f"echo '@@ {number}'; ( {program} ) 2>&1; code=$?; echo; echo @@ ended $code")
    body = run("tries", suspend=False)
    body["spec"]["roles"][0] |= {
        "command": ["sh", "-c", "cd $WINDLASS_ROOT/tmp; " + "\n".join(lines)],
        "resources": {"cpu": "500m", "memory": "256Mi"},
    }
    path = f"{API}/namespaces/red/runs"
    ok(world.client("rita").post(path, body), 201)

    def ended() -> bool:
        status = ok(world.admin.get(f"{path}/tries")).get("status", {})
        return status.get("phase") in ("Succeeded", "Failed")

    until(ended, "all programs have ended", 200)
    chosen = {"labelSelector": "windlass.dev/run=tries"}
    (pod,) = ok(world.admin.get(f"{CORE}/namespaces/red/pods", **chosen))["items"]
    log = world.admin.get(f"{CORE}/namespaces/red/pods/{pod['metadata']['name']}/log")
    text = log.body.decode(errors="replace")
    ends = re.finditer(r"@@ (\d+)\n(.*?)\n@@ ended (\d+)", text, re.DOTALL)
    names = list(PROGRAMS)
    return {names[int(found[1])]: Told(int(found[3]), found[2]) for found in ends}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_job_gets_nowhere(told: dict[str, Told], name: str) -> None:
    assert told[name].code != 0, told[name].text
    for word in CANARIES:
        assert word not in told[name].text


def test_the_engine_and_the_victim_are_as_they_were(
    world: EmbeddedWorld, told: dict[str, Told]
) -> None:
    assert told.keys() == PROGRAMS.keys()
    judge.assert_alive(world)
    engine = world._engine
    assert engine.agent.alive
    assert engine.server.process.alive
    assert _process_of(world.values["pod_uid"])
    assert not (engine.server.state / "hostile").exists()
    log = f"{CORE}/namespaces/blue/pods/{world.values['pod']}/log"
    assert b"canary-log" in world.admin.get(log).body


def _process_of(pod: str) -> int:
    """The program of a pod, found by its variables."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            if (
                command.startswith(b"sleep\0")
                and pod.encode() in (process / "environ").read_bytes()
            ):
                return int(process.name)
        except OSError:
            continue
    raise AssertionError(f"no process of pod {pod}")
