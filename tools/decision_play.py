"""Plays a world of documents: decides, carries the decision out, lets time pass, decides again.

A world is written in the keys of `tools.decision_inputs`. Besides the state at its start it has
`runtimes`, the seconds that each workload really runs, and `steps`: how long to wait before a
decision, and what happens meanwhile. Both may be left out. Nodes that are alike may be written once
with `names` in place of `name`, their devices with `ids` in place of `id`. Nothing here knows the
core.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tools.decision_inputs import Answer, Core

Event = tuple[str, Any]
_OWN = ("name", "start", "policy", "runtimes", "steps")
"""Keys of a world that are no part of the state at its start."""
_USUAL_RUNTIME = 600.0
_USUAL_STEPS = ({"after": 0.0}, {"after": 30.0}, {"after": 300.0}, {"after": 3600.0})


def play(world: Mapping[str, Any]) -> Iterator[tuple[float, Answer]]:
    """Every decision of the world, with its moment."""
    played = _World(world)
    for step in world.get("steps", _USUAL_STEPS):
        yield played.step(step)


def _one_by_one(groups: Iterable[dict[str, Any]], many: str, one: str) -> Iterator[dict[str, Any]]:
    for group in groups:
        if many not in group:
            yield group
            continue
        rest = {key: value for key, value in group.items() if key != many}
        yield from ({one: name, **rest} for name in group[many])


class _World:
    def __init__(self, world: Mapping[str, Any]) -> None:
        state = {key: copy.deepcopy(value) for key, value in world.items() if key not in _OWN}
        state["nodes"] = [
            {**node, "devices": list(_one_by_one(node.get("devices", ()), "ids", "id"))}
            for node in _one_by_one(state.get("nodes", ()), "names", "name")
        ]
        self._core = Core(state, world.get("policy", {}))
        self._now = float(world.get("start", 0.0))
        self._runtimes: dict[str, float] = dict(world.get("runtimes", {}))
        self._nodes = {node["name"]: node for node in state["nodes"]}
        self._queues = {queue["name"]: queue for queue in state.get("queues", ())}
        self._waiting = {each["key"]: each for each in state.get("waiting", ())}
        self._running = {each["workload"]["key"]: each for each in state.get("running", ())}
        self._nominated = {each["workload"]: each for each in state.get("nominations", ())}

    def step(self, step: Mapping[str, Any]) -> tuple[float, Answer]:
        self._now += step.get("after", 60.0)
        events: list[Event] = [("elapsed", self._now)]
        events += self._leave()
        events += self._end()
        for kind, value in step.get("events", ()):
            events += self._happens(kind, value)
        self._core.apply(events)
        answer = self._core.decide(self._now)
        self._core.apply(self._carry_out(answer[0]))
        return self._now, answer

    # --- what happens by itself

    def _leave(self) -> Iterator[Event]:
        """Members that were stopped are gone by now."""
        for key in [key for key, each in self._running.items() if each.get("leaving")]:
            running = self._running[key]
            leaving = {tuple(member) for member in running["leaving"]}
            stay = [one for one in running["members"] if (one["role"], one["index"]) not in leaving]
            if stay:
                running |= {"members": stay, "leaving": [], "shrunkAt": self._now}
                yield "holds", running
            else:
                yield self._wait_again(key)

    def _end(self) -> Iterator[Event]:
        for key, running in list(self._running.items()):
            lasts = self._runtimes.get(key, _USUAL_RUNTIME)
            if self._now >= running["started"] + lasts and not running.get("leaving"):
                del self._running[key]
                yield "gone", (key, self._now - running["started"])

    def _wait_again(self, key: str) -> Event:
        running = self._running.pop(key)
        workload = running["workload"]
        workload["attained"] = workload.get("attained", 0.0) + self._now - running["started"]
        workload["preemptions"] = workload.get("preemptions", 0) + 1
        self._waiting[key] = workload
        return "waits", workload

    # --- what the world says happens

    def _happens(self, kind: str, value: Any) -> Iterator[Event]:
        """An event of a step; what it names may be gone by then, and then nothing happens."""
        if kind == "nodeLost":
            yield from self._lose_node(value)
        elif kind == "nodeBack" and value in self._nodes:
            self._nodes[value]["ready"] = True
            yield "node", self._nodes[value]
        elif kind == "deviceFails" and value[0] in self._nodes:
            devices = copy.deepcopy(self._nodes[value[0]].get("devices", []))
            devices[value[1] % len(devices)]["healthy"] = False
            self._nodes[value[0]]["devices"] = devices
            yield "node", self._nodes[value[0]]
        elif kind == "waits" and value["key"] not in self._running:
            self._waiting[value["key"]] = copy.deepcopy(value)
            yield kind, value
        elif kind == "withdrawn" and self._waiting.pop(value, None):
            yield "gone", (value,)
        elif kind == "saves" and value in self._running:
            self._running[value]["checkpointAt"] = self._now
            yield "saved", (value, self._now)
        elif kind in ("node", "nodeGone", "queue", "queueGone", "quotas", "windows", "accounts"):
            yield self._changes(kind, value)

    def _changes(self, kind: str, value: Any) -> Event:
        if kind == "node":
            self._nodes[value["name"]] = copy.deepcopy(value)
        elif kind == "nodeGone":
            self._nodes.pop(value, None)
        elif kind == "queue":
            self._queues[value["name"]] = value
        return kind, value

    def _lose_node(self, name: str) -> Iterator[Event]:
        """The node takes no more members, and those that it had are gone."""
        if name not in self._nodes:
            return
        self._nodes[name]["ready"] = False
        yield "node", self._nodes[name]
        for key, running in list(self._running.items()):
            stay = [member for member in running["members"] if member["node"] != name]
            if len(stay) == len(running["members"]):
                continue
            if stay:
                kept = {(member["role"], member["index"]) for member in stay}
                leaving = [one for one in running.get("leaving", ()) if tuple(one) in kept]
                running |= {"members": stay, "leaving": leaving}
                yield "holds", running
            else:
                yield self._wait_again(key)

    # --- what was decided

    def _carry_out(self, decision: Mapping[str, Any]) -> Iterator[Event]:
        for placement in decision["placements"]:
            yield "holds", self._placed(placement)
        for eviction in decision["evictions"]:
            running = self._running[eviction["workload"]]
            known = [tuple(member) for member in running.get("leaving", ())]
            told = [tuple(member) for member in eviction["members"]]
            running["leaving"] = list(dict.fromkeys((*known, *told)))
            if eviction["move"]:
                moved = running["workload"].setdefault("moved", [])
                running["workload"]["moved"] = [*moved, (self._now, eviction["for"])]
            yield "holds", running
        made = {each["workload"]: each for each in decision["nominations"]}
        for key in sorted(self._nominated.keys() - made.keys()):
            yield "nominationGone", key
        for each in made.values():
            yield "nominated", each
        self._nominated = made
        yield "reserved", decision["reservations"]

    def _placed(self, placement: Mapping[str, Any]) -> dict[str, Any]:
        key = placement["workload"]
        if key in self._running:
            running: dict[str, Any] = self._running[key]
            running["members"] = [*running["members"], *placement["members"]]
            return running
        workload = self._waiting.pop(key)
        protected = self._queues.get(workload["queue"], {}).get("minRuntime", 0.0)
        expected = workload.get("expected")
        begun: dict[str, Any] = {
            "workload": workload, "members": placement["members"], "started": self._now,
            "expectedEnd": None if expected is None else self._now + expected,
            "protectedUntil": self._now + protected,
        }  # fmt: skip
        self._running[key] = begun
        return begun
