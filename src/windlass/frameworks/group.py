"""The members of one attempt of a run, as frameworks see them, and the names that all share."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

MOST_LISTED = 512
"""Groups with more members do not list them all in a variable: it would be in every pod."""
LEADERS = frozenset({"head", "launcher", "driver", "master", "chief", "jobmanager", "leader"})
"""Names of a first role that only leads: it does none of the workers' work."""


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """One member."""

    role: str
    index: int
    rank: int
    """Counts all members, roles in the order of the spec."""
    address: str
    port: int
    """The first of the ports that are its own."""
    gpus: int = 0
    cpus: int = 1
    """Whole ones, at least one: how much of itself a framework may use."""
    memory: int = 0
    """Bytes."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def slots(self) -> int:
        """How many ranks it starts, where a framework starts several: one per GPU."""
        return max(1, self.gpus)


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    run: str
    uid: str
    attempt: int
    members: tuple[Member, ...]
    """By rank."""
    command: tuple[str, ...]
    """What the user wants the member that is asked about to run."""
    root: str
    """What `/windlass` is to the members."""
    python: str
    """A Python that has this package, inside the members; or any, if `companion` is set."""
    companion: str = ""
    """Where a copy of the companion lies inside the members; "": their Python has this package."""
    least: int = 0
    """Members may come and go while it runs, down to this many; 0: they may not."""
    _kept: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What takes a walk over all members and is the same for each of them: thousands ask."""
        if name not in self._kept:
            self._kept[name] = make()
        found: T = self._kept[name]
        return found

    @property
    def lead(self) -> Member:
        return self.members[0]

    @property
    def leads_only(self) -> bool:
        """The first member has a role of its own, so it does no work of the workers'."""
        lead = self.lead
        alone = self.sizes[lead.role] == 1
        return alone and len(self.members) > 1 and lead.role in LEADERS

    @property
    def workers(self) -> tuple[Member, ...]:
        """Those who do the work."""
        return self.once("workers", lambda: self.members[1:] if self.leads_only else self.members)

    @property
    def sizes(self) -> Mapping[str, int]:
        """How many members each role has."""
        return self.once("sizes", lambda: Counter(member.role for member in self.members))

    @property
    def folder(self) -> str:
        """Where files of a framework go."""
        return f"{self.root}/run"

    def variables(self, member: Member, *, ranks: bool) -> dict[str, str]:
        """Names that every framework's members see. `ranks`: each member is one rank; where a
        framework starts ranks itself, it tells each its own."""
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
        """Whether every member is told who all of them are."""
        return len(self.members) <= MOST_LISTED

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
    """What a member's pod gets."""

    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Name -> content, in `Group.folder`."""
    command: Sequence[str] = ()
    scratch: str = ""
    """A folder beside the member's own that its framework makes: `/tmp/wl-...`. Whoever runs pods
    on the machine's own files removes it with the last of them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Framework:
    ports: int
    """How many each member needs."""
    render: Callable[[Group, Member], Rendered]
    secret: bool = False
    """Members speak to each other's companion, with a secret of the run."""
    starts_ranks: bool = False
    """One member may be several ranks, or none: names of ranks are the framework's to set."""


@dataclasses.dataclass(frozen=True, slots=True)
class Steps:
    """What the companion of the first member does, in this order."""

    command: Sequence[str]
    """The user's, when all is ready."""
    background: Sequence[Sequence[str]] = ()
    """Beside it, on this member: the first is what all others join."""
    opens: int = 0
    """The port on which the first answers; the others start when it does."""
    workers: Sequence[str] = ()
    """On each other member. `{address}`, `{cpus}` and `{gpus}` are that member's, here and in
    `background`."""
    ready: Sequence[str] = ()
    """Repeated until it succeeds."""
    scratch: str = ""
    """See `Rendered`; removed when the command ends, too."""
    needs: str = ""
    """A program that must be in the environment; without it nothing is started."""


def led(group: Group, member: Member, steps: Steps, files: Mapping[str, str]) -> Rendered:
    """The command of a member whose first member leads the others through the companion."""
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


def companion(group: Group, *words: str) -> list[str]:
    program = [group.companion] if group.companion else ["-m", "windlass.frameworks.companion"]
    return [group.python, "-I", *program, *words]


def job_number(uid: str, attempt: int) -> int:
    """A number for those who want one: Slurm's jobs have no names."""
    digest = hashlib.sha256(f"{uid}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:4]) & 0x7FFFFFFF
