"""A stand-in for kubelets, and a witness: plays pods on plain nodes and notes what really ran.

It does what a node does as far as controllers can see: takes a pod or refuses it for want of
capacity, runs it for a while, ends it when it is deleted, and tells so. What ran where and when is
kept here, beside the API, so that a checker can hold the platform's word against it. Plain JSON;
shares no code with what it watches."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import threading
import time
from typing import Any

from tests.harness.rest import Rest

RUN_FOR = "test/run-for"
"""Annotation of a pod: seconds that it works. For ever when it has none."""
FAIL = "test/exit-code"
"""Annotation of a pod: how it ends."""
Json = dict[str, Any]
_TROUBLE = (OSError, http.client.HTTPException, json.JSONDecodeError)
_UNITS = {"m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 1e3, "M": 1e6,
          "G": 1e9}  # fmt: skip


def amount(text: str) -> float:
    """A quantity as a number."""
    for workload, factor in _UNITS.items():
        if text.endswith(workload):
            return float(text.removesuffix(workload)) * factor
    return float(text)


def requests_of(pod: Json) -> dict[str, float]:
    """What its containers ask for together, and itself as one pod."""
    found: dict[str, float] = {"pods": 1.0}
    for container in pod["spec"]["containers"]:
        for name, text in (container.get("resources", {}).get("requests") or {}).items():
            found[name] = found.get(name, 0.0) + amount(str(text))
    return found


@dataclasses.dataclass
class Played:
    """One pod that really ran."""

    uid: str
    name: str
    node: str
    run: str
    """Its Run, or its gang of external pods."""
    attempt: int
    member: str
    asks: dict[str, float]
    devices: tuple[str, ...]
    began: float
    ended: float | None = None

    def overlaps(self, other: Played) -> bool:
        mine, theirs = self.ended or float("inf"), other.ended or float("inf")
        return self.began < theirs and other.began < mine


class Players(threading.Thread):
    """All nodes of a test. `stop` it at the end."""

    def __init__(self, rest: Rest, *, pace: float = 0.15) -> None:
        super().__init__(daemon=True, name="players")
        self._rest = rest
        self._pace = pace
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.played: dict[str, Played] = {}
        """By uid, all that ever ran."""
        self.refused: dict[str, str] = {}
        """By uid of a pod that did not fit, why: a node given more than it has."""
        self.silent: set[str] = set()
        """Nodes that send no status; what runs there runs on."""
        self.refusing: dict[str, str] = {}
        """By node, the reason for which it refuses whatever comes."""
        self.lost: set[str] = set()
        """Nodes whose power is off: what ran there has ended, without a status."""
        self.problems: list[str] = []

    def stop(self) -> None:
        self._over.set()
        self.join(timeout=30)

    def run(self) -> None:
        while not self._over.wait(self._pace):
            with contextlib.suppress(*_TROUBLE):
                self._turn()

    def running(self) -> list[Played]:
        with self._lock:
            return [each for each in self.played.values() if each.ended is None]

    def forget(self) -> None:
        """What has ended was looked at."""
        with self._lock:
            self.played = {u: each for u, each in self.played.items() if each.ended is None}

    def hear(self, node: str) -> None:
        """A silent node is heard again."""
        self.silent.discard(node)

    def power_off(self, node: str) -> None:
        with self._lock:
            self.lost.add(node)
            for each in self.played.values():
                if each.node == node and each.ended is None:
                    each.ended = time.monotonic()

    # --- what nodes do

    def _turn(self) -> None:
        nodes = {n["metadata"]["name"]: n for n in self._list("/api/v1/nodes")}
        pods = {p["metadata"]["uid"]: p for p in self._list("/api/v1/pods")}
        with self._lock:
            for each in self.played.values():
                heard = each.node not in self.silent | self.lost
                if each.ended is None and each.uid not in pods and heard:
                    each.ended = time.monotonic()  # a node that hears that its pod is gone ends it
        for uid, pod in pods.items():
            node = pod["spec"].get("nodeName", "")
            if node in nodes and node not in self.silent | self.lost:
                self._play(uid, pod, nodes[node])

    def _list(self, path: str) -> list[Json]:
        answer = self._rest.get(path)
        if answer.status != 200:
            raise OSError(answer.summary)
        items: list[Json] = answer.json["items"]
        return items

    def _play(self, uid: str, pod: Json, node: Json) -> None:
        known, phase = self.played.get(uid), pod.get("status", {}).get("phase", "Pending")
        if pod["metadata"].get("deletionTimestamp"):
            self._end(uid)
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
            self._rest.delete(_path(pod), body)
        elif phase == "Pending" and known is None:
            self._take(uid, pod, node)
        elif phase == "Pending" and known is not None and known.ended is None:
            self._report(pod, "Running")
        elif phase == "Running" and known is not None and self._is_done(known, pod):
            self._end(uid)
            code = int(_annotations(pod).get(FAIL, "0"))
            self._report(pod, "Failed" if code else "Succeeded", code)

    def _take(self, uid: str, pod: Json, node: Json) -> None:
        name, labels = node["metadata"]["name"], pod["metadata"].get("labels", {})
        asks, allocatable = requests_of(pod), node["status"]["allocatable"]
        short = self._short(name, asks, {k: amount(str(v)) for k, v in allocatable.items()})
        if short or name in self.refusing:
            if short:
                self.refused[uid] = f"{pod['metadata']['name']} on {name}: {short}"
            reason = f"OutOf{short}" if short else self.refusing[name]
            self._refuse(pod, reason)
            return
        gang = f"gang {_annotations(pod).get('windlass.dev/gang', uid)}"
        devices = tuple(filter(None, _annotations(pod).get("windlass.dev/devices", "").split(",")))
        with self._lock:
            self.played[uid] = Played(
                uid, pod["metadata"]["name"], name, labels.get("windlass.dev/run", gang),
                int(labels.get("windlass.dev/attempt", -1)),
                "/".join(labels.get(f"windlass.dev/{part}", pod["metadata"]["name"])
                         for part in ("role", "index")),
                asks, devices, time.monotonic(),
            )  # fmt: skip
        self._report(pod, "Running")

    def _short(self, node: str, asks: dict[str, float], has: dict[str, float]) -> str:
        used: dict[str, float] = {}
        for each in self.running():
            if each.node == node:
                for name, count in each.asks.items():
                    used[name] = used.get(name, 0.0) + count
        return next(
            (n for n, a in asks.items() if used.get(n, 0.0) + a > has.get(n, 0.0) + 1e-6), ""
        )

    def _is_done(self, known: Played, pod: Json) -> bool:
        wanted = _annotations(pod).get(RUN_FOR)
        return wanted is not None and time.monotonic() - known.began >= float(wanted)

    def _end(self, uid: str) -> None:
        with self._lock:
            if uid in self.played and self.played[uid].ended is None:
                self.played[uid].ended = time.monotonic()

    def _report(self, pod: Json, phase: str, code: int = 0) -> None:
        state: Json = {"running": {}}
        if phase != "Running":
            words = "Error" if code else "Completed"
            state = {"terminated": {"exitCode": code, "reason": words}}
        name = pod["spec"]["containers"][0]["name"]
        self._status(pod, {"phase": phase, "containerStatuses": [
            {"name": name, "state": state, "ready": phase == "Running", "restartCount": 0,
             "image": "", "imageID": ""}]})  # fmt: skip

    def _refuse(self, pod: Json, reason: str) -> None:
        self._status(pod, {"phase": "Failed", "reason": reason, "message": "Pod was rejected"})

    def _status(self, pod: Json, status: Json) -> None:
        self._rest.strategic(
            f"{_path(pod)}/status",
            {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status},
        )


def _annotations(pod: Json) -> dict[str, str]:
    found: dict[str, str] = pod["metadata"].get("annotations") or {}
    return found


def _path(pod: Json) -> str:
    meta = pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
