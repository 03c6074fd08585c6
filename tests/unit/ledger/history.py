"""Histories of a small platform, for the ledger's laws.

A `Platform` lives second by second: Runs start, grow, shrink, are preempted and end, nodes come and
go, prices change. What Runs say of themselves is made by the product's own
`control.runs.usage_intervals`. A ledger looks on command, and may have missed
everything in between. `Truth` counts again what everybody held, second by second, and shares no
code with the ledger's own counting.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime

import msgspec
from hypothesis import strategies

from windlass.control.model import run_view
from windlass.control.runs import usage_intervals
from windlass.kinds.types import meta, pricelist, run
from windlass.kinds.values import times
from windlass.ledger.db.repository import LedgerRepository
from windlass.ledger.ingest import extract
from windlass.ledger.model import MACHINE, WHOLE, Device

MIDNIGHT = 1_772_323_200
"""2026-03-01T00:00:00Z; histories begin shortly before it, so that they cross a day."""
START = MIDNIGHT - 120
CPU, MEMORY = 8000, 64 << 30
STEPS = ("start", "grow", "shrink", "gone", "preempt", "end", "price", "tell", "node", "wait")


def node(name: str) -> extract.Node:
    devices = {MACHINE: Device(name, MACHINE, MACHINE, "", "big")}
    devices |= {f"gpu/{i}": Device(name, f"gpu/{i}", "gpu", "a100", "big") for i in range(2)}
    return extract.Node(name, CPU, MEMORY, devices, {})


@dataclasses.dataclass
class Platform:
    now: int = START
    nodes: dict[str, extract.Node] = dataclasses.field(
        default_factory=lambda: {name: node(name) for name in ("n1", "n2")}
    )
    runs: dict[int, run.Run] = dataclasses.field(default_factory=dict)
    prices: list[pricelist.PriceList] = dataclasses.field(default_factory=list)
    log: list[tuple[int, frozenset[str], dict[tuple[int, int], tuple[str, str | None]]]] = (
        dataclasses.field(default_factory=list)
    )
    """From each moment on: the nodes, and by run and member where it is and its device."""

    def step(self, action: str, number: int, choice: int, wait: int) -> None:
        owner = self.runs.get(number)
        phase = owner.status.phase if owner else ""
        if action == "start" and (owner is None or phase == "Queued"):
            self._start(number, choice)
        elif owner is not None and phase == "Running":
            self._change(owner, action, choice)
        if action == "price":
            self._price(choice)
        elif action == "node":
            self.nodes.pop("n2", None) if "n2" in self.nodes else self._back()
        self._note()
        self.now += wait

    def tell(self, repository: LedgerRepository) -> None:
        """The ledger looks."""
        repository.list_prices(self.prices, self.now)
        there = [device for at in self.nodes.values() for device in at.devices.values()]
        repository.observe(there, self.now, {})
        for owner in self.runs.values():
            if extract.has_started(owner):
                self.tell_run(repository, owner)

    def tell_run(self, repository: LedgerRepository, owner: run.Run) -> None:
        every = {name: node(name) for name in ("n1", "n2")}
        told = extract.run_usage(owner, f"q{owner.name[-1]}", every.get)
        known = repository.open_holds([owner.uid])
        holds, unknown = extract.filled_in(told, known)
        assert not unknown
        repository.write({owner.uid: holds}, self.now)
        if not owner.finished:
            owner.status.held = extract.remaining(owner) or None

    # --- what happens

    def _start(self, number: int, choice: int) -> None:
        share = choice % 3 == 0
        device = run.Device(kind="gpu", share="1/2") if share else run.Device(kind="gpu", count=1)
        owner = self.runs.get(number) or run.Run(
            metadata=meta.ObjectMeta(
                name=f"r{number}", namespace=f"t{number % 2}", uid=f"u{number}"
            ),
            spec=run.RunSpec(
                user=f"user{number}",
                roles=[run.Role(
                    name="worker", command=["x"], replicas=3, resize="live", devices=[device],
                    resources=run.Resources(
                        cpu=str(1 + choice % 7), memory=f"{8 * (choice % 8)}Gi"
                    ),
                )],
            ),
        )  # fmt: skip
        self.runs[number] = owner
        size = 1 + choice % 2
        members = [self._member(owner, choice + index) for index in range(size)]
        owner.status.assignment = run.Assignment(
            attempt=owner.status.attempt, epoch=1, members={"worker": members}
        )
        owner.status.held = usage_intervals.started(owner, {"worker": size}, self._time())
        owner.status.members = {"worker": size}
        owner.status.phase = "Running"

    def _member(self, owner: run.Run, choice: int) -> run.Member:
        names = sorted(self.nodes)
        part = ":500" if (owner.spec.roles[0].devices or [])[0].share else ""
        return run.Member(node=names[choice % len(names)], devices=[f"gpu/{choice % 2}{part}"])

    def _change(self, owner: run.Run, action: str, choice: int) -> None:
        room = owner.status.assignment
        assert room is not None
        listed = room.members["worker"]
        size = (owner.status.members or {})["worker"]
        if action == "grow" and len(listed) == size < 3:
            listed.append(self._member(owner, choice))
            owner.status.held = usage_intervals.started(owner, {"worker": size + 1}, self._time())
            owner.status.members = {"worker": size + 1}
        elif action == "shrink" and size > 1 and len(listed) == size:
            owner.status.held = usage_intervals.leaving(owner, {"worker": size - 1})
            owner.status.members = {"worker": size - 1}
        elif action == "gone" and len(listed) > size:
            room.members["worker"] = listed[:size]
            view = run_view.View(owner, [], 1, self._time())
            owner.status.held = usage_intervals.left(view) or owner.status.held
        elif action in ("preempt", "end"):
            again = action == "preempt"
            owner.status.held = usage_intervals.over(owner, [], self._time(), again=again)
            owner.status.phase = "Queued" if again else "Succeeded"
            owner.status.attempt += 1 if again else 0
            if again:
                owner.status.assignment = None

    def _price(self, choice: int) -> None:
        number = len(self.prices)
        at = times.seconds(self._time())
        entries = [
            pricelist.Price(device="gpu", rented=pricelist.Rented(per_hour=f"{choice}.37")),
            pricelist.Price(device="machine", rented=pricelist.Rented(per_hour=f"0.{choice + 1}3")),
        ]
        if choice % 2:
            dear = pricelist.Rented(per_hour=f"{choice * 3}.11")
            entries.append(pricelist.Price(device="gpu", form="ratio", rented=dear))
        self.prices.append(
            pricelist.PriceList(
                metadata=meta.ObjectMeta(
                    name=f"p{number}", uid=f"p{number}", creation_timestamp=at
                ),
                spec=pricelist.PriceListSpec(effective_from=at, entries=entries),
            )
        )  # fmt: skip

    def _back(self) -> None:
        self.nodes["n2"] = node("n2")

    def _note(self) -> None:
        held = {}
        for number, owner in self.runs.items():
            room = owner.status.assignment
            if owner.status.phase == "Running" and room is not None:
                for index, member in enumerate(room.members["worker"]):
                    held[number, index] = (member.node, (member.devices or [None])[0])
        self.log.append((self.now, frozenset(self.nodes), held))

    def _time(self) -> datetime.datetime:
        return times.from_unix(self.now)

    def copy(self) -> Platform:
        made = Platform(self.now, dict(self.nodes))
        made.prices = list(self.prices)
        made.runs = {
            number: msgspec.convert(msgspec.to_builtins(owner), run.Run)
            for number, owner in self.runs.items()
        }
        return made


def device_seconds(platform: Platform) -> dict[str, int]:
    """By team, millionths of GPUs times seconds, counted second by second."""
    found: collections.Counter[str] = collections.Counter()
    for (at, _, held), (until, *_) in zip(
        platform.log, [*platform.log[1:], (platform.now, None, None)], strict=True
    ):
        for (number, _), (_, device) in held.items():
            part = WHOLE // 2 if device and device.endswith(":500") else WHOLE
            found[platform.runs[number].namespace] += part * (until - at)
    return dict(found)


def steps(most: int = 25) -> strategies.SearchStrategy[list[tuple[str, int, int, int]]]:
    return strategies.lists(
        strategies.tuples(
            strategies.sampled_from(STEPS), strategies.integers(0, 3), strategies.integers(0, 9),
            strategies.integers(0, 30),
        ),
        min_size=3, max_size=most,
    )  # fmt: skip
