"""Random clusters and pods for the differential test, and what our core says about them.

Everything comes from one seed. Pods use every predicate that is supported; amounts are chosen so
that about half of the nodes refuse for some reason.
"""

from __future__ import annotations

from typing import Any

from tests.kubernetes import differential_volumes
from tests.kubernetes.differential_dice import NAMESPACES, ZONES, Dice
from windlass.control.scheduler.cache import cache
from windlass.core.model import types
from windlass.core.placement import pod_affinity
from windlass.core.placement.placement_context import PlacementContext, Work
from windlass.kinds import codec
from windlass.kinds.types import core

Json = dict[str, Any]

DISKS, APPS = ("ssd", "hdd"), ("web", "db", "cache")
KEYS = ("topology.kubernetes.io/zone", "kubernetes.io/hostname", "rack")
TAINTS = (("dedicated", "ml"), ("dedicated", "web"), ("spot", ""))
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")


# --- nodes ----------------------------------------------------------------------------------------


def node(dice: Dice, name: str) -> Json:
    labels = {"kubernetes.io/hostname": name, "number": str(dice.randint(0, 9))}
    if dice.maybe(0.9):
        labels["topology.kubernetes.io/zone"] = dice.choice(ZONES)
    if dice.maybe(0.6):
        labels["rack"] = dice.choice(("r1", "r2"))
    if dice.maybe(0.6):
        labels["disk"] = dice.choice(DISKS)
    if dice.maybe(0.15):
        labels["number"] = dice.choice(("1_0", "x", "007", ""))
    amounts = {
        "cpu": dice.choice(("1500m", "4", "8")),
        "memory": dice.choice(("2Gi", "8Gi", "7.5G")),
        "ephemeral-storage": dice.choice(("1Gi", "20Gi", "12Ti")),
        "pods": dice.choice(("3", "8", "110")),
    }
    if dice.maybe(0.5):
        amounts[dice.choice(("nvidia.com/gpu", "windlass.dev/gpu"))] = dice.choice(("1", "4"))
    if dice.maybe(0.4):
        amounts["example.com/widget"] = dice.choice(("1", "3"))
    if dice.maybe(0.3):
        amounts["hugepages-2Mi"] = dice.choice(("64Mi", "512Mi"))
    taints = [
        {"key": key, "value": value, "effect": effect}
        for (key, value), effect in zip(dice.some(TAINTS, 2), dice.sample(EFFECTS, 2), strict=False)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "taints": taints if dice.maybe(0.35) else [],
            "unschedulable": dice.maybe(0.07),
        },
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


# --- pods -----------------------------------------------------------------------------------------


def pod(dice: Dice, name: str, nodes: list[str]) -> Json:
    spec: Json = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "priorityClassName": "waits",
        "containers": [_container(dice, f"c{i}") for i in range(dice.choice((1, 1, 2)))],
    }
    if dice.maybe(0.3):
        spec["initContainers"] = [
            _init_container(dice, f"i{i}") for i in range(dice.choice((1, 2, 3)))
        ]
    if dice.maybe(0.15):
        spec["resources"] = {"requests": {"cpu": "3", "memory": "6Gi"}}
        for each in (*spec["containers"], *spec.get("initContainers", ())):
            each["resources"].get("requests", {}).pop("hugepages-2Mi", None)
            each["resources"].pop("limits", None)
            each["resources"] = {"requests": {"cpu": "200m"}}
    if dice.maybe(0.25):
        spec["nodeSelector"] = {"disk": dice.choice(DISKS)}
    if dice.maybe(0.5):
        spec["tolerations"] = [_toleration(dice) for _ in range(dice.choice((1, 2)))]
    wanted: Json = {}
    if dice.maybe(0.35):
        wanted["nodeAffinity"] = _node_affinity(dice, nodes)
    for side, chance in (("podAffinity", 0.2), ("podAntiAffinity", 0.25)):
        if dice.maybe(chance):
            wanted[side] = _pod_affinity(dice)
    if wanted:
        spec["affinity"] = wanted
    if dice.maybe(0.25):
        spec["topologySpreadConstraints"] = _spreads(dice)
    if dice.maybe(0.08):
        spec["runtimeClassName"] = "heavy"
    mounts = differential_volumes.mounts(dice, name.split("-")[0])
    spec["volumes"] = mounts if dice.maybe(0.35) else []
    labels = {"app": dice.choice(APPS), "version": dice.choice(("v1", "v2"))}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": dice.choice(sorted(NAMESPACES)), "labels": labels,
        },
        "spec": spec,
    }  # fmt: skip


def pinned(body: Json, name: str, node_name: str) -> Json:
    """A copy of the pod that may only be on one node: in every term, or it would be another."""
    spec = dict(body["spec"])
    near = dict(spec.get("affinity") or {})
    on = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    nodes = dict(near.get("nodeAffinity") or {})
    terms = (nodes.get(required) or {}).get("nodeSelectorTerms")
    merged = [_also(term, on) for term in terms] if terms else [on]
    nodes[required] = {"nodeSelectorTerms": merged}
    spec["affinity"] = {**near, "nodeAffinity": nodes}
    # Where nodes count by the pod's own node affinity, a pin would change what is counted.
    spec["topologySpreadConstraints"] = spec.get("topologySpreadConstraints") or []
    return {**body, "metadata": {**body["metadata"], "name": name}, "spec": spec}


def _also(term: Json, on: Json) -> Json:
    """Both terms; one that selects nothing stays so."""
    if not term.get("matchExpressions") and not term.get("matchFields"):
        return term
    return {**term, "matchFields": [*(term.get("matchFields") or ()), *on["matchFields"]]}


def can_be_pinned(body: Json) -> bool:
    """Whether pinning asks the same question: a spread that counts nodes by the pod's own node
    affinity would count one node only."""
    return not any(
        each["whenUnsatisfiable"] == "DoNotSchedule" and each.get("nodeAffinityPolicy") != "Ignore"
        for each in body["spec"].get("topologySpreadConstraints") or ()
    )


def _container(dice: Dice, name: str) -> Json:
    made = _sized(dice, name)
    if dice.maybe(0.2):
        made["ports"] = [_port(dice) for _ in range(dice.choice((1, 2)))]
    return made


def _init_container(dice: Dice, name: str) -> Json:
    made = _container(dice, name)
    if dice.maybe(0.5):
        made["restartPolicy"] = "Always"
    return made


def _sized(dice: Dice, name: str) -> Json:
    requests: Json = {}
    if dice.maybe(0.8):
        requests["cpu"] = dice.choice(("0", "100m", "500m", "1", "1.5"))
    if dice.maybe(0.7):
        requests["memory"] = dice.choice(("64Mi", "1Gi", "1.5Gi", "1G"))
    if dice.maybe(0.1):
        requests["ephemeral-storage"] = dice.choice(("512Mi", "9Ti"))
    limits = {}
    if dice.maybe(0.12):
        resource = dice.choice(("nvidia.com/gpu", "windlass.dev/gpu", "example.com/widget"))
        limits[resource] = dice.choice(("1", "2"))
    if dice.maybe(0.06):
        limits["hugepages-2Mi"] = "64Mi"
        requests.setdefault("memory", "64Mi")
    return {
        "name": name, "image": "none",
        "resources": {"requests": requests, **({"limits": limits} if limits else {})},
    }  # fmt: skip


def _port(dice: Dice) -> Json:
    number = dice.choice((8080, 8081, 9090))
    port = {
        "containerPort": number, "hostPort": number, "protocol": dice.choice(("TCP", "TCP", "UDP")),
    }  # fmt: skip
    if dice.maybe(0.4):
        port["hostIP"] = dice.choice(("127.0.0.1", "10.0.0.1", "0.0.0.0"))
    return port


def _toleration(dice: Dice) -> Json:
    key, value = dice.choice(TAINTS)
    if dice.maybe(0.15):
        return {"operator": "Exists"}
    made: Json = {"key": key, "operator": "Exists"}
    if dice.maybe(0.5):
        made = {"key": key, "operator": "Equal", "value": value}
    if dice.maybe(0.5):
        made["effect"] = dice.choice(EFFECTS)
    return made


def _expression(dice: Dice) -> Json:
    key = dice.choice(("disk", "rack", "topology.kubernetes.io/zone", "number"))
    if key == "number" and dice.maybe(0.7):
        operator = dice.choice(("Gt", "Lt"))
        return {"key": key, "operator": operator, "values": [str(dice.randint(0, 9))]}
    operator = dice.choice(("In", "NotIn", "Exists", "DoesNotExist"))
    made = {"key": key, "operator": operator}
    if operator in ("In", "NotIn"):
        made["values"] = dice.some((*ZONES, *DISKS, "r1", "5"), 3)
    return made


def _node_term(dice: Dice, nodes: list[str]) -> Json:
    term: Json = {}
    if dice.maybe(0.85):
        term["matchExpressions"] = [_expression(dice) for _ in range(dice.choice((1, 1, 2)))]
    if dice.maybe(0.2):
        operator = dice.choice(("In", "NotIn"))
        field = {"key": "metadata.name", "operator": operator, "values": [dice.choice(nodes)]}
        term["matchFields"] = [field]
    return term


def _node_affinity(dice: Dice, nodes: list[str]) -> Json:
    made: Json = {}
    if dice.maybe(0.8):
        terms = [_node_term(dice, nodes) for _ in range(dice.choice((1, 1, 2)))]
        made["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    if dice.maybe(0.4):
        liked = {"weight": dice.randint(1, 100), "preference": _node_term(dice, nodes)}
        made["preferredDuringSchedulingIgnoredDuringExecution"] = [liked]
    return made


def _selector(dice: Dice) -> Json:
    if dice.maybe(0.1):
        return {}
    if dice.maybe(0.6):
        return {"matchLabels": {"app": dice.choice(APPS)}}
    operator = dice.choice(("In", "NotIn", "Exists", "DoesNotExist"))
    each: Json = {"key": dice.choice(("app", "version", "other")), "operator": operator}
    if operator in ("In", "NotIn"):
        each["values"] = dice.some((*APPS, "v1"), 2)
    return {"matchExpressions": [each]}


def _pod_term(dice: Dice) -> Json:
    term: Json = {"topologyKey": dice.choice(KEYS)}
    if dice.maybe(0.93):
        term["labelSelector"] = _selector(dice)
        if dice.maybe(0.2):
            term[dice.choice(("matchLabelKeys", "mismatchLabelKeys"))] = ["version"]
    if dice.maybe(0.25):
        term["namespaces"] = dice.some(NAMESPACES, 2)
    if dice.maybe(0.25):
        term["namespaceSelector"] = dice.choice(
            ({}, {"matchLabels": {"team": "a"}}, {"matchLabels": {"team": "none"}})
        )
    return term


def _pod_affinity(dice: Dice) -> Json:
    made: Json = {}
    if dice.maybe(0.85):
        terms = [_pod_term(dice) for _ in range(dice.choice((1, 1, 1, 2)))]
        made["requiredDuringSchedulingIgnoredDuringExecution"] = terms
    if dice.maybe(0.3):
        liked = {"weight": dice.randint(1, 100), "podAffinityTerm": _pod_term(dice)}
        made["preferredDuringSchedulingIgnoredDuringExecution"] = [liked]
    return made


def _spreads(dice: Dice) -> list[Json]:
    found: dict[tuple[str, str], Json] = {}
    for _ in range(dice.choice((1, 1, 2))):
        made: Json = {
            "maxSkew": dice.choice((1, 1, 2)),
            "topologyKey": dice.choice(KEYS),
            "whenUnsatisfiable": dice.choice(("DoNotSchedule", "DoNotSchedule", "ScheduleAnyway")),
        }
        if dice.maybe(0.95):
            made["labelSelector"] = _selector(dice)
            if dice.maybe(0.25):
                made["matchLabelKeys"] = ["version"]
        if made["whenUnsatisfiable"] == "DoNotSchedule" and dice.maybe(0.3):
            made["minDomains"] = dice.randint(1, 4)
        if dice.maybe(0.5):
            made["nodeAffinityPolicy"] = dice.choice(("Honor", "Ignore"))
        if dice.maybe(0.5):
            made["nodeTaintsPolicy"] = dice.choice(("Honor", "Ignore"))
        found[made["topologyKey"], made["whenUnsatisfiable"]] = made
    return list(found.values())


# --- what we say ----------------------------------------------------------------------------------


def feasible(seen: cache.SchedulerCache, body: Json) -> set[str]:
    """The nodes that our core would take for a pod, by the code that the scheduler runs."""
    asked = codec.from_dict(core.Pod, body)
    asked.spec.scheduler_name = "windlass"
    asked.spec.node_name = ""
    seen.on_pod("ADDED", None, asked)
    snapshot = seen.apply_changes(seen.drain_changes(0.0))
    workload = snapshot.waiting[f"pod/{asked.uid}"]
    pod_index = snapshot.pod_index.fork()
    context = PlacementContext(snapshot.cluster.fork(), Work(types.Policy().operations), pod_index)
    _, allowed, _ = pod_affinity.fitting(context, pod_index, workload, workload.roles[0])
    named = zip(snapshot.cluster.nodes, allowed, strict=True)
    names = {node.name for node, ok in named if ok and workload.hold_reason is None}
    seen.on_pod("DELETED", asked, None)
    seen.apply_changes(seen.drain_changes(0.0))
    return names
