"""What jobs themselves recorded, read after a campaign of kills: an account without
any part of the platform.

`JOB` is the program of every run of `test_runs_survive`. It appends to the journal with O_APPEND,
one write per line: `start`, `overlap` (it saw an earlier attempt of its run alive), `taken` (its
port was in use, or its own shared memory was not its own), `end`.
"""

from __future__ import annotations

import collections
import dataclasses
import os
from pathlib import Path
from typing import Any

from windlass.podlogs import archive

ENDED = ("Succeeded", "Failed", "Stopped")
JOB = """
import os, socket, subprocess, sys, time
journal, seconds = sys.argv[1], float(sys.argv[2])
code, lines = int(sys.argv[3]), int(sys.argv[4])
own = [os.environ["WINDLASS_" + name] for name in ("RUN", "ATTEMPT", "ROLE", "INDEX")]
run, attempt, role, index = own

def started(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]

def note(word, *more):
    text = " ".join([word, *own, str(os.getpid()), started(os.getpid()), *more])
    handle = os.open(journal, os.O_WRONLY | os.O_APPEND)
    os.write(handle, (text + "\\n").encode())
    os.close(handle)

def earlier():
    with open(journal) as file:
        return [line.split() for line in file]

for word, other, its, _, _, pid, since, *_ in earlier():
    if word == "start" and other == run and int(its) < int(attempt) and started(pid) == since:
        note("overlap", its, pid)
note("start")
if os.environ.get("RANK") == "0" and "MASTER_PORT" in os.environ:
    meeting = socket.socket()
    meeting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        meeting.bind((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
        meeting.listen()
    except OSError as problem:
        note("taken", os.environ["MASTER_PORT"], problem.strerror)
shm = os.statvfs("/dev/shm")
private = shm.f_blocks * shm.f_frsize <= 4 << 20  # where mounts are permitted
if os.environ.get("OWN_SHM") and private:
    if os.listdir("/dev/shm"):
        note("taken", "/dev/shm", "has what somebody else left there")
    with open("/dev/shm/mine", "w") as file:
        file.write(run)
subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL)  # left behind: must go with us
deadline = time.monotonic() + seconds
for number in range(lines):
    print(f"line {number} of {run} attempt {attempt} {role} {index}", flush=True)
    time.sleep(max(0.0, deadline - time.monotonic()) / max(1, lines - number))
print(f"last line of {run} attempt {attempt} {role} {index}", flush=True)
status = 0 if code < 0 and int(attempt) >= -code else abs(code)
note("end", str(status))
sys.exit(status)
"""
"""Arguments: journal, seconds to run, exit code (-n: succeeds from attempt n on), lines to say."""


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """One run of the campaign, and what may become of it."""

    name: str
    workers: int
    seconds: float
    code: int
    lines: int
    limit: int
    causes: tuple[str, ...]
    namespace: str = "default"
    framework: str = "process"
    shm: bool = False
    """It wants shared memory of its own."""
    sent: bool = False
    """Its program comes with it, as code; else it lies on the machine."""

    def spec(self, place: Path, python: str, mark: str, digest: str) -> dict[str, Any]:
        """`place` has the program and the journal; `digest` names the program as code."""
        program = "job.py" if self.sent else str(place / "job.py")
        role = {
            "name": "worker",
            "replicas": self.workers,
            "command": [
                python, "-I", "-S", program, str(place / "journal"), f"{self.seconds:.2f}",
                str(self.code), str(self.lines),
            ],
            "env": {"WINDLASS_TEST_MARK": mark, **({"OWN_SHM": "1"} if self.shm else {})},
            "resources": {
                "cpu": "20m", "memory": "48Mi", **({"shm": "4Mi"} if self.shm else {})
            },
        }  # fmt: skip
        return {
            "retries": {"limit": self.limit, "causes": list(self.causes)},
            "checkpoint": {"grace": "2s"},
            "framework": self.framework,
            "roles": [role],
            **({"code": {"digest": digest}} if self.sent else {}),
        }


@dataclasses.dataclass(slots=True)
class Member:
    """One start of one member, as the journal has it."""

    pid: int
    code: int | None = None


@dataclasses.dataclass(slots=True)
class Account:
    """All that the journal says of one run: attempt -> (role, index) -> its starts."""

    attempts: dict[int, dict[tuple[str, int], list[Member]]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(lambda: collections.defaultdict(list))
    )
    complaints: list[str] = dataclasses.field(default_factory=list)


def read(journal: Path) -> dict[str, Account]:
    accounts: dict[str, Account] = collections.defaultdict(Account)
    for line in journal.read_text().splitlines():
        word, name, attempt, role, index, pid, _, *more = line.split()
        account = accounts[name]
        starts = account.attempts[int(attempt)][role, int(index)]
        if word == "start":
            starts.append(Member(int(pid)))
        elif word in ("overlap", "taken"):
            account.complaints.append(line)
        else:
            next(each for each in starts if each.pid == int(pid)).code = int(more[0])
    return accounts


def problems(order: Order, status: dict[str, Any], account: Account, hits: list[str]) -> list[str]:
    """What must not have happened to a run. `hits`: what we did to it: the shims and workers that
    were killed, and whether its user stopped it."""
    found = list(account.complaints)
    phase, attempts = status.get("phase"), account.attempts
    for attempt, members in attempts.items():
        found += [
            f"attempt {attempt} of {role} {index} was started {len(starts)} times"
            for (role, index), starts in members.items()
            if len(starts) > 1
        ]
    # Another process of this machine may have had its port: the node refused it, nothing started.
    free = sum(step.get("reason") == "NodeRefused" for step in status.get("history") or ())
    if len(attempts) > 1 + order.limit:
        found.append(f"{len(attempts)} attempts; its policy allows {1 + order.limit}")
    if status.get("attempt", 0) > order.limit + free:
        found.append(f"status.attempt is {status['attempt']}; its policy allows {order.limit}")
    needless = 0 if "Failed" in order.causes and order.code else len(attempts) - 1 - len(hits)
    if needless > 0:
        found.append(f"{len(attempts)} attempts for {len(hits)} kills: {hits}")
    if phase not in ENDED:
        found.append(f"it has not ended: {status}")
    if phase == "Stopped" and "stop" not in hits:
        found.append("it was stopped, and nobody asked for that")
    last = attempts[max(attempts)] if attempts else {}
    codes = [starts[-1].code for starts in last.values()]
    if phase == "Succeeded" and (len(last) != order.workers or any(codes)):
        found.append(f"it counts as succeeded, but its members ended with {codes}")
    if phase == "Succeeded" and None in codes:
        found.append("it counts as succeeded, but a member never came to its end")
    allowed = order.limit if "Failed" in order.causes else 0
    may_fail = bool(hits) or order.code > 0 or allowed < -order.code
    if phase == "Failed" and not may_fail:
        found.append(f"it failed without a reason: {status.get('reason')} {status.get('message')}")
    return [f"{order.name}: {each}" for each in found]


def processes(mark: str) -> list[str]:
    """Every process of the campaign that is alive."""
    pids = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return [f"{pid} {_command(pid)}" for pid in pids if ours(pid, mark)]


def ours(pid: int, mark: str) -> bool:
    """Whether it is alive and of this campaign, by what the campaign put into its environment:
    another process may have got the pid of one that ended."""
    folder = Path(f"/proc/{pid}")
    try:
        marked = f"WINDLASS_TEST_MARK={mark}".encode() in (folder / "environ").read_bytes()
        return marked and (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def left_behind(state: Path, uids: set[str]) -> list[str]:
    """Mounts, control groups and folders of pods of a campaign that is over. Ports need no look:
    without a process no device is in use, and without a pod none is allocated."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found = [f"mount: {line}" for line in mounts if str(state) in line]
    for root, folders, _ in os.walk("/sys/fs/cgroup"):
        found += [f"cgroup: {root}/{name}" for name in folders if _names_any(name, uids)]
    for root, folders, files in os.walk(state / "agent"):
        if Path(root) == state / "agent" and archive.FOLDER in folders:
            folders.remove(archive.FOLDER)  # bounded, and swept some minutes after their runs
        found += [f"file: {root}/{name}" for name in folders + files if _names_any(name, uids)]
    return found


def _names_any(name: str, uids: set[str]) -> bool:
    return any(uid in name or uid.replace("-", "_") in name for uid in uids)
