"""The members of one attempt of a run, as frameworks see them, and the variables of all members."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

MAX_LISTED = 512
"""Larger groups do not list all members in a variable, which would be part of every pod."""
LEADERS = frozenset({"head", "launcher", "driver", "master", "chief", "jobmanager", "leader"})
"""Names of a first role that only leads and does no work of the workers."""


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """One member: a pod of the run."""

    role: str
    index: int
    rank: int
    """Index among all members, with the roles in the order of the spec."""
    address: str
    port: int
    """The first of the ports of the member."""
    gpus: int = 0
    cpus: int = 1
    """Whole CPUs, at least one, that a framework may use."""
    memory: int = 0
    """Bytes."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def slots(self) -> int:
        """The number of ranks that a framework starts in the member: one per GPU."""
        return max(1, self.gpus)


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    run: str
    uid: str
    attempt: int
    members: tuple[Member, ...]
    """By rank."""
    command: tuple[str, ...]
    """The user's command for the member that is rendered."""
    root: str
    """The path of `/windlass` inside of the members."""
    python: str
    """A Python inside of the members that has this package; or any, if `companion` is set."""
    companion: str = ""
    """Path of a copy of the companion inside of the members; "": their Python has this package."""
    least: int = 0
    """Minimum number of members of an elastic run; 0: it is not elastic."""
    _cache: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """A cached value that depends on all members and is the same for each: there may be
        thousands."""
        if name not in self._cache:
            self._cache[name] = make()
        found: T = self._cache[name]
        return found

    @property
    def lead(self) -> Member:
        return self.members[0]

    @property
    def leads_only(self) -> bool:
        """Whether the first member has a leading role of its own and does no worker's work."""
        lead = self.lead
        alone = self.sizes[lead.role] == 1
        return alone and len(self.members) > 1 and lead.role in LEADERS

    @property
    def workers(self) -> tuple[Member, ...]:
        """The members that do the work."""
        return self.once("workers", lambda: self.members[1:] if self.leads_only else self.members)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Role -> number of members."""
        return self.once("sizes", lambda: Counter(member.role for member in self.members))

    @property
    def folder(self) -> str:
        """The folder of a framework's files."""
        return f"{self.root}/run"

    def variables(self, member: Member, *, ranks: bool) -> dict[str, str]:
        """The variables of a member in every framework. `ranks`: each member is one rank; a
        framework that starts ranks itself sets those variables."""
        own = {
            "WINDLASS_RANK": str(member.rank),
            "WINDLASS_SIZE": str(len(self.members)),
            "WINDLASS_ROLE_SIZE": str(self.sizes[member.role]),
            "WINDLASS_ADDRESS": member.address,
        }
        if member.port:
            own["WINDLASS_PORT"] = str(member.port)
            if self.is_listed:
                own["WINDLASS_HOSTS"] = self.once("hosts", self._hosts)
        return {**own, **self._torch(member), **self._slurm(member)} if ranks else own

    @property
    def is_listed(self) -> bool:
        """Whether the variables of each member list all members."""
        return len(self.members) <= MAX_LISTED

    def _hosts(self) -> str:
        return ",".join(f"{each.address}:{each.port}" for each in self.members)

    def _torch(self, member: Member) -> dict[str, str]:
        found = {
            "RANK": str(member.rank),
            "WORLD_SIZE": str(len(self.members)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(member.rank),
            "MASTER_ADDR": self.lead.address,
        }
        return {**found, "MASTER_PORT": str(self.lead.port)} if self.lead.port else found

    def _slurm(self, member: Member) -> dict[str, str]:
        size, job = str(len(self.members)), str(job_number(self.uid, self.attempt))
        found = {
            "SLURM_JOB_ID": job,
            "SLURM_JOBID": job,
            "SLURM_JOB_NAME": self.run,
            "SLURM_PROCID": str(member.rank),
            "SLURM_LOCALID": "0",
            "SLURM_NODEID": str(member.rank),
            "SLURM_NTASKS": size,
            "SLURM_NPROCS": size,
            "SLURM_NTASKS_PER_NODE": "1",
            "SLURM_NNODES": size,
            "SLURM_JOB_NUM_NODES": size,
            "SLURM_STEP_NUM_NODES": size,
            "SLURM_RESTART_COUNT": str(self.attempt),
            "SLURM_CPUS_PER_TASK": str(member.cpus),
            "SLURMD_NODENAME": member.address,
        }
        if self.is_listed:
            hosts = self.once("nodes", lambda: ",".join(each.address for each in self.members))
            found |= {"SLURM_JOB_NODELIST": hosts, "SLURM_STEP_NODELIST": hosts}
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class Rendered:
    """The variables, files and command of a member's pod."""

    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Name -> content, in `Group.folder`."""
    command: Sequence[str] = ()
    scratch: str = ""
    """A folder outside of the pod's own that the framework creates: `/tmp/wl-...`. Without
    container images, the agent removes it with the last pod that uses it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Framework:
    ports: int
    """The number of ports that each member needs."""
    render: Callable[[Group, Member], Rendered]
    secret: bool = False
    """Members talk to each other's companion and need a secret of the run."""
    starts_ranks: bool = False
    """The framework starts ranks itself, several or none per member, and sets their variables."""


@dataclasses.dataclass(frozen=True, slots=True)
class Steps:
    """The commands that the companion of the first member starts."""

    command: Sequence[str]
    """The user's command, started last, when the cluster is ready."""
    background: Sequence[Sequence[str]] = ()
    """Commands beside it on this member, started first; the workers join the first of them."""
    opens: int = 0
    """The port of the first background command; the workers start when it accepts connections."""
    workers: Sequence[str] = ()
    """The command of each other member. `{address}`, `{cpus}` and `{gpus}` are that member's, here
    and in `background`."""
    ready: Sequence[str] = ()
    """A check that is repeated until it succeeds."""
    scratch: str = ""
    """See `Rendered`; also removed when the command ends."""
    needs: str = ""
    """A program that must be in the PATH; without it nothing is started."""


def led(group: Group, member: Member, steps: Steps, files: Mapping[str, str]) -> Rendered:
    """What a member gets in a group whose first member starts the others through the companion."""
    variables = {"WINDLASS_FILES": json.dumps(files)} if files else {}
    if member != group.lead:
        return Rendered(variables, files, companion(group, "follow"))
    plan = {
        "members": [
            {
                "name": each.name,
                "address": each.address,
                "port": each.port,
                "cpus": each.cpus,
                "gpus": each.gpus,
            }
            for each in group.members
        ],
        "command": list(steps.command),
        "background": [list(argv) for argv in steps.background],
        "workers": list(steps.workers),
        "ready": list(steps.ready),
        "needs": steps.needs,
        "opens": steps.opens,
        "scratch": steps.scratch,
    }
    variables["WINDLASS_PLAN"] = json.dumps(plan)
    return Rendered(variables, files, companion(group, "lead"))


def companion(group: Group, *arguments: str) -> list[str]:
    program = [group.companion] if group.companion else ["-m", "windlass.frameworks.companion"]
    return [group.python, "-I", *program, *arguments]


def job_number(uid: str, attempt: int) -> int:
    """A job number for programs that expect Slurm's numeric job ids."""
    digest = hashlib.sha256(f"{uid}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:4]) & 0x7FFFFFFF
