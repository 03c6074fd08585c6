"""Storage of random clusters for the differential test: volumes that are bound, volumes that are
there and wait for a claim, classes whose volumes are made on demand, and limits of all kinds.

Classes and volumes of one cluster carry its prefix, so that those of others never match. Volumes
that one claim might get all differ in size: which of two equal ones is taken is not specified.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from tests.kubernetes.differential_dice import NAMESPACES, ZONES, Dice

Json = dict[str, Any]
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
DISKS, MADE, COUNTED = "disks.example.com", "made.example.com", "counted.example.com"
"""Drivers: of bound volumes; of those made on demand; and of those made where there is capacity."""
BOUND = ("zoned", "local", "free", "alone", "labelled")
WAITING = {
    "waits1": ("local", "1Gi"), "waits2": ("local", "2Gi"), "waits3": ("local", "3Gi"),
    "made1": ("made", "1Gi"), "made2": ("made", "2Gi"),
    "counted1": ("counted", "1Gi"), "counted2": ("counted", "4Gi"),
    "never": ("at-once", "1Gi"), "classless": ("nobody", "1Gi"),
}  # fmt: skip
"""Claims without a volume: the class and the size."""
CLAIMS = (*BOUND, *WAITING, "missing")
DRIVERS = [
    {"metadata": {"name": DISKS}, "spec": {}},
    {"metadata": {"name": MADE}, "spec": {}},
    {"metadata": {"name": COUNTED}, "spec": {"storageCapacity": True}},
]


@dataclasses.dataclass
class Storage:
    """What a cluster has of each kind, in the order in which it is made."""

    classes: list[Json]
    rooms: list[Json]
    limits: list[Json]
    volumes: list[Json]
    claims: list[Json]
    attachments: list[Json]

    def all(self) -> list[tuple[str, Json]]:
        """With the path that each is made at."""
        group = "/apis/storage.k8s.io/v1"
        return [
            *((f"{group}/storageclasses", each) for each in self.classes),
            *((f"{group}/namespaces/alpha/csistoragecapacities", each) for each in self.rooms),
            *((f"{group}/csinodes", each) for each in self.limits),
            *(("/api/v1/persistentvolumes", each) for each in self.volumes),
            *((_claims(each), each) for each in self.claims),
            *((f"{group}/volumeattachments", each) for each in self.attachments),
        ]


def storage(dice: Dice, prefix: str, nodes: list[str]) -> Storage:
    bound = [_bound(dice, prefix, space, name, nodes) for space in sorted(NAMESPACES)
             for name in BOUND]  # fmt: skip
    there = [_volume(dice, prefix, number, nodes) for number in range(1, 8)]
    attachments = [
        {
            "metadata": {"name": f"{prefix}-{number}"},
            "spec": {
                "attacher": DISKS, "nodeName": dice.choice(nodes),
                "source": {"persistentVolumeName": dice.choice(bound)[0]["metadata"]["name"]},
            },
        }
        for number in range(dice.randint(0, 3))
    ]  # fmt: skip
    return Storage(
        _classes(dice, prefix),
        [_room(dice, prefix, number) for number in range(dice.randint(0, 3))],
        [_limits(dice, name) for name in nodes if dice.maybe(0.6)],
        [*(volume for volume, _ in bound), *there],
        [*(claim for _, claim in bound), *_waiting(dice, prefix)],
        attachments,
    )


def mounts(dice: Dice, prefix: str) -> list[Json]:
    claims = [f"{prefix}-{each}" for each in dice.some(CLAIMS, 3)]
    return [
        {"name": f"v{i}", "persistentVolumeClaim": {"claimName": claim}}
        for i, claim in enumerate(claims)
    ]


def made_for(claim: Json, node: Json, driver: str) -> Json:
    """What a driver makes for a claim whose node is chosen: a volume near that node."""
    name, labels = claim["metadata"]["uid"], node["metadata"]["labels"]
    key = ZONE if ZONE in labels else HOST
    return {
        "metadata": {"name": f"made-{name}"},
        "spec": {
            "capacity": claim["spec"]["resources"]["requests"],
            "accessModes": claim["spec"]["accessModes"],
            "storageClassName": claim["spec"]["storageClassName"],
            "csi": {"driver": driver, "volumeHandle": f"made-{name}"},
            "nodeAffinity": _near(key, [labels[key]]),
            "claimRef": {
                "namespace": claim["metadata"]["namespace"], "name": claim["metadata"]["name"],
                "uid": name,
            },
        },
    }  # fmt: skip


# --- kinds


def _classes(dice: Dice, prefix: str) -> list[Json]:
    found = [
        {"metadata": {"name": f"{prefix}-{name}"}, "provisioner": provisioner,
         "volumeBindingMode": mode}
        for name, provisioner, mode in (
            ("local", "kubernetes.io/no-provisioner", "WaitForFirstConsumer"),
            ("made", MADE, "WaitForFirstConsumer"),
            ("counted", COUNTED, "WaitForFirstConsumer"),
            ("at-once", MADE, "Immediate"),
        )
    ]  # fmt: skip
    for each in found[1:3]:
        if dice.maybe(0.5):
            near = {"key": ZONE, "values": dice.some(ZONES, 2)}
            each["allowedTopologies"] = [{"matchLabelExpressions": [near]}]
    return found


def _room(dice: Dice, prefix: str, number: int) -> Json:
    topology = dice.choice(
        ({}, {"matchLabels": {ZONE: dice.choice(ZONES)}},
         {"matchExpressions": [{"key": "disk", "operator": "Exists"}]})
    )  # fmt: skip
    made: Json = {
        "metadata": {"name": f"{prefix}-{number}"}, "storageClassName": f"{prefix}-counted",
        "nodeTopology": topology, "capacity": dice.choice(("512Mi", "2Gi", "10Gi")),
    }  # fmt: skip
    if dice.maybe(0.3):
        made["maximumVolumeSize"] = dice.choice(("1Gi", "4Gi"))
    return made


def _limits(dice: Dice, node: str) -> Json:
    drivers = [
        {"name": driver, "nodeID": node, "topologyKeys": None,
         **({"allocatable": {"count": dice.randint(1, 3)}} if dice.maybe(0.8) else {})}
        for driver in dice.some((DISKS, MADE, COUNTED), 3)
    ]  # fmt: skip
    return {"metadata": {"name": node}, "spec": {"drivers": drivers}}


def _bound(
    dice: Dice, prefix: str, namespace: str, name: str, nodes: list[str]
) -> tuple[Json, Json]:
    key, values = ZONE, dice.some(ZONES, 2)
    if name == "local":
        key, values = HOST, dice.some(nodes, 2)
    modes = ["ReadWriteOncePod" if name == "alone" else "ReadWriteMany"]
    volume_name = f"{prefix}-{namespace}-{name}"
    volume: Json = {
        "metadata": {"name": volume_name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": modes,
            "csi": {"driver": DISKS, "volumeHandle": volume_name},
            "claimRef": {"namespace": namespace, "name": f"{prefix}-{name}"},
        },
    }  # fmt: skip
    if name in ("zoned", "local"):
        volume["spec"]["nodeAffinity"] = _near(key, values)
    if name == "labelled":
        label = dice.choice((ZONE, "failure-domain.beta.kubernetes.io/zone"))
        volume["metadata"]["labels"] = {label: "__".join(dice.some(ZONES, 2))}
    claim = _claim(prefix, namespace, name, "", "1Gi", modes)
    claim["spec"]["volumeName"] = volume_name
    return volume, claim


def _volume(dice: Dice, prefix: str, number: int, nodes: list[str]) -> Json:
    """One that is there and not bound yet."""
    modes = ["ReadWriteOnce", *(["ReadWriteMany"] if dice.maybe(0.3) else [])]
    spec: Json = {
        "capacity": {"storage": f"{number}Gi"}, "accessModes": modes,
        "storageClassName": f"{prefix}-{dice.choice(('local', 'local', 'made'))}",
        "volumeMode": "Block" if dice.maybe(0.1) else "Filesystem",
    }  # fmt: skip
    kind = dice.choice(("local", "zone", "name", "everywhere"))
    where = f"{prefix}-{number}"
    if kind == "everywhere":
        spec["hostPath"] = {"path": "/nowhere"}
    elif kind == "zone":
        spec["csi"] = {"driver": DISKS, "volumeHandle": where}
        spec["nodeAffinity"] = _near(ZONE, dice.some(ZONES, 2))
    else:
        spec["local"] = {"path": "/nowhere"}
        spec["nodeAffinity"] = _near(HOST, dice.some(nodes, 4))
    if kind == "name" and dice.maybe(0.5):
        field = {"key": "metadata.name", "operator": dice.choice(("In", "NotIn")),
                 "values": [dice.choice(nodes)]}  # fmt: skip
        spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchFields"] = [field]
    labels = {"speed": dice.choice(("fast", "slow"))}
    return {"metadata": {"name": where, "labels": labels}, "spec": spec}


def _waiting(dice: Dice, prefix: str) -> list[Json]:
    found = []
    for namespace, (name, (class_name, size)) in itertools.product(
        sorted(NAMESPACES), WAITING.items()
    ):
        modes = [dice.choice(("ReadWriteOnce", "ReadWriteOnce", "ReadWriteMany"))]
        claim = _claim(prefix, namespace, name, f"{prefix}-{class_name}", size, modes)
        if class_name == "local" and dice.maybe(0.2):
            claim["spec"]["selector"] = {"matchLabels": {"speed": "fast"}}
        found.append(claim)
    return found


def _claim(
    prefix: str, namespace: str, name: str, class_name: str, size: str, modes: list[str]
) -> Json:
    return {
        "metadata": {"name": f"{prefix}-{name}", "namespace": namespace},
        "spec": {
            "accessModes": modes, "storageClassName": class_name,
            "resources": {"requests": {"storage": size}},
        },
    }  # fmt: skip


def _near(key: str, values: list[str]) -> Json:
    term = {"key": key, "operator": "In", "values": values}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}


def _claims(claim: Json) -> str:
    return f"/api/v1/namespaces/{claim['metadata']['namespace']}/persistentvolumeclaims"
