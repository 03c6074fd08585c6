"""Reads a cluster as plain JSON, and what nodes really ran, and says what is wrong.

Knows the platform's guarantees and none of its code: no node holds more than it has, no device is
given twice, gangs are whole or gone in time, attempts do not overlap, every Run ended as it should,
and nothing stays behind without an owner.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from tests.harness.players import Played, amount, requests_of
from tests.harness.rest import Rest

Json = dict[str, Any]
RUNS = "/apis/windlass.dev/v1alpha1/runs"
OURS = frozenset({"windlass-scheduler", "windlass-controllers"})
"""Leases that stay."""
STAYS: Mapping[str, set[str]] = {
    "pods": set(), "secrets": set(), "services": {"kubernetes"}, "configmaps": {"kube-root-ca.crt"},
}  # fmt: skip
"""What every namespace has, or the one that tests use."""
ENDED = ("Succeeded", "Failed", "Stopped")
_NEXT = {
    "": {"Queued"},
    "Queued": {"Starting", "Stopped", "Failed"},
    "Starting": {"Running", "Stopping", "Queued", *ENDED},
    "Running": {"Stopping", "Queued", *ENDED},
    "Stopping": {"Queued", *ENDED},
}


def problems(
    client: Rest,
    played: Iterable[Played],
    expected: Mapping[str, str],
    *,
    sizes: Mapping[str, int],
    elastic: Collection[str],
    half_for: float,
) -> list[str]:
    """`expected`: by Run, the phase it ends in. `sizes`: members of gangs. `elastic`: Runs whose
    members come and go. `half_for`: seconds that a part of a gang may run without the rest."""
    runs = {each["metadata"]["name"]: each for each in _items(client, RUNS)}
    pods, witnessed = _items(client, "/api/v1/pods"), list(played)
    return [
        *_runs_ended(runs, expected),
        *_histories_are_whole(runs.values()),
        *_nodes_hold_what_they_have(_items(client, "/api/v1/nodes"), pods),
        *_owners_live(runs, pods),
        *_nodes_never_held_more(_items(client, "/api/v1/nodes"), witnessed),
        *_devices_were_held_once(witnessed),
        *_attempts_never_overlapped(witnessed, runs),
        *_members_ran_once(witnessed, elastic),
        *_gangs_were_whole(witnessed, sizes, half_for),
    ]


def leftovers(client: Rest, namespace: str) -> list[str]:
    """What is still there after every Run was deleted."""
    found = [f"Run {_name(each)}" for each in _items(client, RUNS)]
    for kind, kept in STAYS.items():
        listed = _items(client, f"/api/v1/namespaces/{namespace}/{kind}")
        found += [f"{kind} {_name(each)}" for each in listed if _name(each) not in kept]
    leases = "/apis/coordination.k8s.io/v1/namespaces/windlass-system/leases"
    found += [f"lease {_name(each)}" for each in _items(client, leases) if _name(each) not in OURS]
    return found


# --- what the API says ----------------------------------------------------------------------------


def _runs_ended(runs: Mapping[str, Json], expected: Mapping[str, str]) -> Iterator[str]:
    for name, phase in expected.items():
        status = runs.get(name, {}).get("status", {})
        if name not in runs:
            yield f"Run {name} is lost"
        elif status.get("phase") != phase:
            yield (
                f"Run {name} should be {phase}, is {status.get('phase')}: {status.get('reason')} "
                f"{status.get('message')}"
            )


def _histories_are_whole(runs: Iterable[Json]) -> Iterator[str]:
    for each in runs:
        steps = each.get("status", {}).get("history") or []
        for before, after in itertools.pairwise(steps):
            if after.get("from", "") != before["to"] or after["to"] not in _NEXT[before["to"]]:
                yield f"Run {_name(each)}: {before['to']} is followed by {after}"
        for step in steps:
            if step["to"] in ENDED and step is not steps[-1]:
                yield f"Run {_name(each)} went on after it had ended: {step}"


def _nodes_hold_what_they_have(nodes: Iterable[Json], pods: Iterable[Json]) -> Iterator[str]:
    used: dict[str, dict[str, float]] = {}
    for pod in pods:
        if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            sums = used.setdefault(pod["spec"].get("nodeName", ""), {})
            for name, count in requests_of(pod).items():
                sums[name] = sums.get(name, 0.0) + count
    for node in nodes:
        for name, count in used.get(_name(node), {}).items():
            has = amount(str(node["status"]["allocatable"].get(name, "0")))
            if count > has + 1e-6:
                yield f"node {_name(node)} holds {count} {name} and has {has}"


def _owners_live(runs: Mapping[str, Json], pods: Iterable[Json]) -> Iterator[str]:
    for pod in pods:
        for owner in pod["metadata"].get("ownerReferences") or ():
            if owner["kind"] != "Run":
                continue
            there = runs.get(owner["name"])
            if there is None or there["metadata"]["uid"] != owner["uid"]:
                yield f"pod {_name(pod)} belongs to Run {owner['name']}, which is gone"
            elif there["status"].get("phase") in ENDED and _is_active(pod):
                yield f"pod {_name(pod)} is active, its Run has ended"


# --- what nodes saw -------------------------------------------------------------------------------


def _nodes_never_held_more(nodes: Iterable[Json], played: Iterable[Played]) -> Iterator[str]:
    """At every moment at which something began."""
    by_node: dict[str, list[Played]] = {}
    for each in played:
        by_node.setdefault(each.node, []).append(each)
    for node in nodes:
        has = {n: amount(str(v)) for n, v in node["status"]["allocatable"].items()}
        there = by_node.get(_name(node), [])
        for moment in there:
            sums: dict[str, float] = {}
            for each in there:
                if each.began <= moment.began and (each.ended or float("inf")) > moment.began:
                    for name, count in each.asks.items():
                        sums[name] = sums.get(name, 0.0) + count
            for name, count in sums.items():
                if count > has.get(name, 0.0) + 1e-6:
                    yield f"node {_name(node)} ran {count} {name} at once and has {has.get(name)}"


def _devices_were_held_once(played: Iterable[Played]) -> Iterator[str]:
    by_device: dict[tuple[str, str], list[Played]] = {}
    for each in played:
        for device in each.devices:
            by_device.setdefault((each.node, device), []).append(each)
    for (node, device), holders in by_device.items():
        for one, other in itertools.combinations(holders, 2):
            if one.overlaps(other):
                yield f"{device} of {node} was held by {one.name} and {other.name} at once"


def _attempts_never_overlapped(played: Iterable[Played], runs: Mapping[str, Json]) -> Iterator[str]:
    """Unless a node was silent and the Run's history owns up to it."""
    by_run: dict[str, list[Played]] = {}
    for each in played:
        by_run.setdefault(each.run, []).append(each)
    for run, there in by_run.items():
        for one, other in itertools.combinations(there, 2):
            if _may_have_run_twice(runs.get(run, {})):
                continue
            if one.attempt != other.attempt and one.overlaps(other):
                yield f"Run {run}: attempts {one.attempt} and {other.attempt} ran at once"


def _may_have_run_twice(owner: Json) -> bool:
    steps = owner.get("status", {}).get("history") or []
    return any("may have run twice" in step.get("message", "") for step in steps)


def _members_ran_once(played: Iterable[Played], elastic: Collection[str]) -> Iterator[str]:
    """In one attempt. A member that an elastic Run gave up may come again, when it is gone."""
    seen: dict[tuple[str, int, str], Played] = {}
    for each in played:
        key = each.run, each.attempt, each.member
        before = seen.get(key)
        seen[key] = each
        if before is not None and (each.run not in elastic or before.overlaps(each)):
            yield f"Run {each.run}: {each.member} of attempt {each.attempt} ran twice"


def _gangs_were_whole(
    played: Iterable[Played], sizes: Mapping[str, int], half_for: float
) -> Iterator[str]:
    by_attempt: dict[tuple[str, int], list[Played]] = {}
    for each in played:
        by_attempt.setdefault((each.run, each.attempt), []).append(each)
    for (run, attempt), there in by_attempt.items():
        if len(there) >= sizes.get(run, 0):
            continue
        ends = [each.ended for each in there if each.ended is not None]
        if len(ends) < len(there):
            yield f"Run {run}: {len(there)} of {sizes[run]} members of attempt {attempt} still run"
        elif max(ends) - min(each.began for each in there) > half_for:
            yield f"Run {run}: half of attempt {attempt} ran for longer than {half_for:.0f} s"


# --- parts ----------------------------------------------------------------------------------------


def _is_active(pod: Json) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def _items(client: Rest, path: str) -> list[Json]:
    answer = client.get(path)
    assert answer.status == 200, answer.summary
    found: list[Json] = answer.json["items"]
    return found


def _name(obj: Json) -> str:
    return str(obj["metadata"]["name"])
