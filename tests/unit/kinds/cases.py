"""Objects that must be accepted or refused, the same by our validation and by a real cluster."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from windlass.kinds.types import cronrun, pricelist, queue, reservation, run
from windlass.kinds.types.meta import Object

Json = dict[str, Any]
DIGEST = "sha256:" + "0" * 64


def run_object(**spec: Any) -> Json:
    """A run of one command. It names its user; the embedded server fills in the caller
    otherwise."""
    return _object(run.Run, run_spec() | spec)


def run_spec(**fields: Any) -> Json:
    return {"user": "admin", "roles": [{"command": ["true"]}]} | fields


def role(**fields: Any) -> Json:
    """The spec of a run with one role that has these fields."""
    return run_object(roles=[{"command": ["true"]} | fields])


def device(**fields: Any) -> Json:
    return role(devices=[{"kind": "gpu"} | fields])


def cron_run(**spec: Any) -> Json:
    template = {"spec": run_spec()}
    return _object(cronrun.CronRun, {"schedule": "0 3 * * *", "template": template} | spec)


def queue_object(**spec: Any) -> Json:
    return _object(queue.Queue, spec)


def reservation_object(**spec: Any) -> Json:
    """A maintenance window of one node; a field that is None is left away."""
    whole = {"from": "2036-01-01T20:00:00Z", "duration": "8h", "nodes": {"names": ["n0"]}} | spec
    return _object(
        reservation.Reservation, {name: value for name, value in whole.items() if value is not None}
    )


def price_list(**spec: Any) -> Json:
    entries = [{"device": "machine", "rented": {"perHour": "1.50"}}]
    return _object(
        pricelist.PriceList, {"effectiveFrom": "2036-01-01T00:00:00Z", "entries": entries} | spec
    )


def named(value: Json, name: str) -> Json:
    return value | {"metadata": value["metadata"] | {"name": name}}


def without(value: Json, *path: str) -> Json:
    changed = copy.deepcopy(value)
    inner = changed
    for step in path[:-1]:
        inner = inner[step]
    del inner[path[-1]]
    return changed


def _object(kind: type[Object], spec: Json) -> Json:
    resource = kind.resource
    metadata = {"name": "sample"} | ({"namespace": "default"} if resource.namespaced else {})
    head = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    return head | {"spec": spec}


KINDS: dict[str, type[Object]] = {
    "Run": run.Run, "CronRun": cronrun.CronRun, "Queue": queue.Queue,
    "PriceList": pricelist.PriceList, "Reservation": reservation.Reservation,
}  # fmt: skip

GOOD: dict[str, Json] = {
    "minimal run": run_object(),
    "maintenance window": reservation_object(reason="cooling"),
    "reservation that ends by the clock": reservation_object(
        duration=None, to="2036-01-02T04:00:00+01:00"
    ),
    "reservation of amounts that recurs": reservation_object(**{
        "from": None, "schedule": "0 20 * * 6", "timeZone": "Europe/Berlin", "nodes": None,
        "amounts": {"gpu/h100": 8, "cpu": "64"},
        "for": {"queues": ["team-a"], "namespaces": ["ns"], "users": ["ann@example.org"]},
    }),
    "reservation by labels": reservation_object(nodes={"selector": {"row": "b"}}),
    "every part of a run": run_object(
        queue="team.a", user="alice@example.org", priority=1000, preemptible=False, suspend=True,
        framework="torch", completion={"role": "launcher"}, restart="role",
        roles=[
            {
                "name": "launcher", "command": ["sh", "-c", ""], "replicas": 4, "minReplicas": 2,
                "resize": "live", "env": {"A_1": "", "_b": "x=y"},
                "envFrom": [{"secret": "a"}, {"config": "b", "prefix": "P_"}],
                "ports": [{"name": "http", "port": 65535}],
                "resources": {"cpu": 1, "memory": "1.5Gi", "shm": "auto"},
                "devices": [{"kind": "gpu", "count": 2, "models": ["a100", "h100"]}],
            },
            {
                "command": ["x"], "resources": {"cpu": "0.5", "memory": "1e9", "shm": "64Mi"},
                "devices": [
                    {"kind": "gpu", "share": "1/4", "isolation": "hard"},
                    {"kind": "gpu", "memory": "8Gi", "compute": 25, "isolation": "soft"},
                ],
            },
        ],
        placement={
            "gang": False, "pack": "spread", "topology": {"level": "rack", "mode": "required"},
            "bundle": {"within": "numa", "devices": ["gpu", "rdma"]},
            "nodes": {"selector": {"zone": "a"}, "tolerations": [{"operator": "Exists"}]},
        },
        environment={"image": "x/y:1", "python": "3.11", "requirements": ["numpy"], "setup": "ls"},
        code={"digest": DIGEST},
        mounts=[{"from": "claim:data", "path": "/data", "readOnly": True},
                {"from": "host:/srv", "path": "/srv"}],
        duration={"expected": "2h", "max": "1d12h", "start": "500ms"},
        retries={"limit": 0, "causes": ["Failed"]},
        checkpoint={"signal": "SIGUSR1", "grace": "1m", "path": "/ckpt"},
        overrides={"labels": {"a": "b"}, "imagePullPolicy": "Never",
                   "securityContext": {"runAsUser": 1000}},
        ttlAfterFinished="0s",
    ),
    "shared memory as large as the memory": role(resources={"memory": "1Gi", "shm": "1024Mi"}),
    "nulls": role(env={"A": None, "B": "x"}, name=None) | {"status": None},
    "longest name of a run": named(run_object(), "a" * 40),
    "most replicas": role(replicas=4096, minReplicas=4096),
    "minimal cron run": cron_run(),
    "every part of a cron run": cron_run(
        timeZone="Europe/Berlin", concurrencyPolicy="Replace", startingDeadline="1h",
        successfulHistoryLimit=0, failedHistoryLimit=0, suspend=True,
    ),
    "outputs": run_object(outputs=[{"path": "out/*.pt", "when": ["end", "checkpoint"]}]),
    "array": run_object(array={"indices": "0-9:2,20", "parallelism": 3, "stop": "4"}),
    "dependencies": run_object(after=[{"run": "a"}, {"run": "b", "when": "any"}]),
    "cron run by name": cron_run(schedule="@daily"),
    "empty queue": queue_object(),
    "every part of a queue": queue_object(
        parent="company", namespaces=["a", "b"], guarantee={"gpu": 16, "gpu/h100": 8, "cpu": "2k"},
        limit={"gpu": "64", "memory": "1Ti"}, lend={"gpu": "15500m"}, weight=2, order="attained",
        strict=True, reserve=0, minRuntime="10m", maxPriority=0,
        budget={"deviceHours": {"gpu": 5000}, "at": [{"percent": 80, "do": "warn"}]},
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Bad:
    """An object that must be refused, at this path and with these words (ours)."""

    value: Json
    path: str
    words: str
    by_cluster: bool = True
    """A cluster refuses it too; not so where CEL cannot tell."""


BAD: dict[str, Bad] = {
    "reservation without a begin": Bad(reservation_object(**{"from": None}), "spec", "from, or"),
    "reservation with two begins": Bad(
        reservation_object(schedule="@daily"), "spec", "either from, or schedule"
    ),
    "reservation without an end": Bad(reservation_object(duration=None), "spec", "needs an end"),
    "reservation with two ends": Bad(
        reservation_object(to="2036-01-02T20:00:00Z"), "spec", "either to, or duration"
    ),
    "reservation by schedule with a fixed end": Bad(
        reservation_object(**{
            "from": None, "schedule": "@daily", "duration": None, "to": "2036-01-02T20:00:00Z",
        }),
        "spec", "with a schedule, duration",
    ),
    "reservation that ends before it begins": Bad(
        reservation_object(duration=None, to="2036-01-01T20:00:00Z"), "spec.to", "later than from"
    ),
    "reservation on no day": Bad(
        reservation_object(**{"from": "2036-02-30T20:00:00Z"}), "spec.from", "valid date"
    ),
    "reservation of nothing": Bad(reservation_object(nodes=None), "spec", "nodes or amounts"),
    "reservation of nodes and amounts": Bad(
        reservation_object(amounts={"gpu": 1}), "spec", "nodes or amounts"
    ),
    "reservation of no amounts": Bad(
        reservation_object(nodes=None, amounts={}), "spec.amounts", "at least one"
    ),
    "reservation of nodes by both": Bad(
        reservation_object(nodes={"names": ["a"], "selector": {"a": "b"}}),
        "spec.nodes", "names or selector",
    ),
    "reservation of nodes with no label": Bad(
        reservation_object(nodes={"selector": {}}), "spec.nodes", "at least one"
    ),
    "reservation for nobody": Bad(
        reservation_object(**{"for": {"queues": []}}), "spec.for", "at least one queue"
    ),
    "reservation by a schedule that names no time": Bad(
        reservation_object(**{"from": None, "schedule": "0 99 * * *"}), "spec.schedule",
        "five fields", by_cluster=False,
    ),
    "reservation in no time zone": Bad(
        reservation_object(timeZone="Europe/Atlantis"), "spec.timeZone", "known time zone",
        by_cluster=False,
    ),
    "no spec": Bad(without(run_object(), "spec"), "spec", "Required"),
    "no roles": Bad(without(run_object(), "spec", "roles"), "spec.roles", "Required"),
    "empty roles": Bad(run_object(roles=[]), "spec.roles", "at least 1 item"),
    "no command": Bad(run_object(roles=[{}]), "spec.roles[0].command", "Required"),
    "empty command": Bad(role(command=[]), "spec.roles[0].command", "at least 1"),
    "command is text": Bad(role(command="ls"), "spec.roles[0].command", "must be a list"),
    "zero replicas": Bad(role(replicas=0), "spec.roles[0].replicas", "0: must be at least 1"),
    "too many replicas": Bad(role(replicas=5000), "spec.roles[0].replicas", "at most 4096"),
    "replicas are text": Bad(role(replicas="3"), "spec.roles[0].replicas", "whole number"),
    "replicas are half": Bad(role(replicas=1.5), "spec.roles[0].replicas", "whole number"),
    "replicas are true": Bad(role(replicas=True), "spec.roles[0].replicas", "whole number"),
    "minReplicas above replicas": Bad(
        role(replicas=2, minReplicas=3), "spec.roles[0].minReplicas", "at most replicas"
    ),
    "minReplicas above default": Bad(
        role(minReplicas=2), "spec.roles[0].minReplicas", "at most replicas"
    ),
    "role name": Bad(role(name="Worker"), "spec.roles[0].name", "lower case"),
    "role name with newline": Bad(role(name="worker\n"), "spec.roles[0].name", "lower case"),
    "role name too long": Bad(role(name="a" * 21), "spec.roles[0].name", "20"),
    "two roles of one name": Bad(
        run_object(roles=[{"command": ["a"]}, {"command": ["b"]}]),
        "spec.roles[1]", 'Duplicate value: {"name":"worker"}',
    ),
    "too many roles": Bad(
        run_object(roles=[{"name": f"r{i}", "command": ["a"]} for i in range(17)]),
        "spec.roles", "at most 16",
    ),
    "number in env": Bad(role(env={"A": 1}), "spec.roles[0].env.A", "put quotes around"),
    "null in a list": Bad(role(command=[None]), "spec.roles[0].command[0]", "null"),
    "null for what is needed": Bad(role(command=None), "spec.roles[0].command", "Required"),
    "name in env": Bad(role(env={"1A": "x"}), "spec.roles[0].env.1A", "not a digit first"),
    "envFrom of nothing": Bad(role(envFrom=[{}]), "spec.roles[0].envFrom[0]", "exactly one"),
    "envFrom of both": Bad(
        role(envFrom=[{"secret": "a", "config": "b"}]), "spec.roles[0].envFrom[0]", "exactly one"
    ),
    "port zero": Bad(role(ports=[{"name": "a", "port": 0}]), "spec.roles[0].ports[0].port", "1"),
    "port name": Bad(role(ports=[{"name": "a" * 16, "port": 1}]), "spec.roles[0].ports[0].name",
                     "Too long"),
    "two ports of one name": Bad(
        role(ports=[{"name": "a", "port": 1}, {"name": "a", "port": 2}]),
        "spec.roles[0].ports[1]", "Duplicate",
    ),
    "cpu is a fraction without quotes": Bad(
        role(resources={"cpu": 0.5}), "spec.roles[0].resources.cpu", '"0.5"'
    ),
    "cpu below zero": Bad(role(resources={"cpu": -1}), "spec.roles[0].resources.cpu", "at least 0"),
    "memory by a wrong suffix": Bad(
        role(resources={"memory": "32GB"}), "spec.roles[0].resources.memory", '"32GB"'
    ),
    "memory is auto": Bad(role(resources={"memory": "auto"}), "spec.roles[0].resources.memory",
                          "quantity"),
    "shared memory above the memory": Bad(
        role(resources={"memory": "1Gi", "shm": "1025Mi"}), "spec.roles[0].resources.shm",
        "which includes it",
    ),
    "shared memory above the memory that is not named": Bad(
        role(resources={"shm": "2Gi"}), "spec.roles[0].resources.shm", "which includes it"
    ),
    "device without kind": Bad(role(devices=[{"count": 1}]), "spec.roles[0].devices[0].kind",
                               "Required"),
    "whole and share": Bad(device(count=1, share="1/4"), "spec.roles[0].devices[0]", "by count"),
    "share and memory": Bad(device(share="1/4", memory="8Gi"), "spec.roles[0].devices[0]",
                            "by count"),
    "memory without a suffix": Bad(
        role(resources={"memory": "512"}), "spec.roles[0].resources.memory", "at least 1Mi"
    ),
    "price of cpu": Bad(
        price_list(entries=[{"device": "cpu", "rented": {"perHour": "1"}}]),
        "spec.entries[0].device", "or machine",
    ),
    "share of one": Bad(device(share="2/2"), "spec.roles[0].devices[0].share", "below 1"),
    "share of ten by nine": Bad(device(share="10/9"), "spec.roles[0].devices[0].share", "below 1"),
    "share as decimal": Bad(device(share="0.25"), "spec.roles[0].devices[0].share", "1/4"),
    "compute above all": Bad(device(compute=101), "spec.roles[0].devices[0].compute", "at most"),
    "isolation of a whole device": Bad(
        device(count=1, isolation="soft"), "spec.roles[0].devices[0].isolation", "for shares"
    ),
    "framework with a typo": Bad(
        run_object(framework="torhc"), "spec.framework", 'did you mean "torch"?'
    ),
    "priority too high": Bad(run_object(priority=1001), "spec.priority", "at most 1000"),
    "completion of no role": Bad(
        run_object(completion={"role": "launcher"}), "spec.completion.role", "one of the roles"
    ),
    "completion is text": Bad(run_object(completion="all"), "spec.completion", "an object"),
    "duration of zero": Bad(run_object(duration={"max": "0s"}), "spec.duration.max", "than zero"),
    "duration without unit": Bad(run_object(duration={"max": 90}), "spec.duration.max", "90s"),
    "duration below zero": Bad(run_object(duration={"start": "-1s"}), "spec.duration.start", "90s"),
    "empty duration": Bad(run_object(duration={"max": ""}), "spec.duration.max", "duration"),
    "cause of retries": Bad(
        run_object(retries={"causes": ["Fail"]}), "spec.retries.causes[0]", 'did you mean "Failed"'
    ),
    "signal": Bad(run_object(checkpoint={"signal": "TERM"}), "spec.checkpoint.signal", "SIGTERM"),
    "python as a number": Bad(
        run_object(environment={"python": 3.11}), "spec.environment.python", '"3.11"'
    ),
    "mount of nothing": Bad(
        run_object(mounts=[{"from": "data", "path": "/d"}]), "spec.mounts[0].from", "claim:NAME"
    ),
    "mount at a relative path": Bad(
        run_object(mounts=[{"from": "claim:a", "path": "d"}]), "spec.mounts[0].path", "with /"
    ),
    "digest": Bad(run_object(code={"digest": "md5:0"}), "spec.code.digest", "sha256"),
    "bundle of one": Bad(
        run_object(placement={"bundle": {"within": "numa", "devices": ["gpu"]}}),
        "spec.placement.bundle.devices", "at least 2 items",
    ),
    "name of a run too long": Bad(named(run_object(), "a" * 41), "metadata.name", "40 characters"),
    "name of a run in upper case": Bad(named(run_object(), "Run"), "metadata.name", "RFC 1123"),
    "name of a cron run too long": Bad(named(cron_run(), "a" * 29), "metadata.name", "28"),
    "outputs of an array": Bad(
        run_object(array={"indices": "0-9"}, outputs=[{"path": "out"}]), "spec.outputs", "absent"
    ),
    "a moment of outputs": Bad(
        run_object(outputs=[{"path": "out", "when": ["sometimes"]}]), "spec.outputs[0].when[0]",
        "end",
    ),
    "two outputs of one path": Bad(
        run_object(outputs=[{"path": "out"}, {"path": "out"}]), "spec.outputs[1]", "Duplicate",
    ),
    "indices in letters": Bad(
        run_object(array={"indices": "a-b"}), "spec.array.indices", "indices such as 0-99"
    ),
    "a limit of no index": Bad(
        run_object(array={"indices": "0-9", "parallelism": 0}), "spec.array.parallelism", "1"
    ),
    "a condition that does not exist": Bad(
        run_object(after=[{"run": "a", "when": "good"}]), "spec.after[0].when", "failed"
    ),
    "schedule of four fields": Bad(cron_run(schedule="0 3 * *"), "spec.schedule", "five fields"),
    "schedule by an unknown name": Bad(cron_run(schedule="@never"), "spec.schedule", "@daily"),
    "schedule at minute 99": Bad(
        cron_run(schedule="99 3 * * *"), "spec.schedule", "name a time", by_cluster=False
    ),
    "unknown time zone": Bad(
        cron_run(timeZone="Europe/Nowhere"), "spec.timeZone", "known time zone", by_cluster=False
    ),
    "concurrency policy": Bad(
        cron_run(concurrencyPolicy="forbid"), "spec.concurrencyPolicy", 'did you mean "Forbid"?'
    ),
    "bad template": Bad(
        cron_run(template={"spec": run_spec(roles=[{"command": ["a"], "minReplicas": 2}])}),
        "spec.template.spec.roles[0].minReplicas", "at most replicas",
    ),
    "queue that is its own parent": Bad(queue_object(parent="sample"), "spec.parent", "its own"),
    "lend above guarantee": Bad(
        queue_object(guarantee={"gpu": 8}, lend={"gpu": "8001m"}), "spec.lend", "at most the guar"
    ),
    "lend without guarantee": Bad(queue_object(lend={"gpu": 1}), "spec.lend", "at most the guar"),
    "lend of something else": Bad(
        queue_object(guarantee={"cpu": 8}, lend={"gpu": 1}), "spec.lend", "at most the guarantee"
    ),
    "limit below guarantee": Bad(
        queue_object(guarantee={"memory": "1Gi"}, limit={"memory": "1G"}), "spec.limit", "at least"
    ),
    "weight of zero": Bad(queue_object(weight=0), "spec.weight", "at least 1"),
    "order": Bad(queue_object(order="FIFO"), "spec.order", 'did you mean "fifo"?'),
    "name of a resource": Bad(
        queue_object(guarantee={"GPU": 1}), "spec.guarantee.GPU", "name a resource"
    ),
    "budget of nothing": Bad(
        queue_object(budget={"deviceHours": {}}), "spec.budget", "at least one"
    ),
    "budget step": Bad(
        queue_object(budget={"deviceHours": {"gpu": 1}, "at": [{"percent": 0, "do": "warn"}]}),
        "spec.budget.at[0].percent", "at least 1",
    ),
    "spec is a list": Bad(queue_object() | {"spec": []}, "spec", "an object"),
}  # fmt: skip

Change = tuple[Json, Json, str]
"""Before, after, and the path that must be refused; "" if the change is allowed."""

CHANGES: dict[str, Change] = {
    "nothing": (run_object(), run_object(), ""),
    "priority": (run_object(), run_object(priority=7), ""),
    "queue": (run_object(), run_object(queue="other"), ""),
    "suspend": (run_object(), run_object(suspend=True), ""),
    "stop": (run_object(), run_object(stop=True), ""),
    "stop taken back": (run_object(stop=True), run_object(), "spec.stop"),
    "duration": (run_object(), run_object(duration={"max": "3h"}), ""),
    "ttl": (run_object(), run_object(ttlAfterFinished="1h"), ""),
    "replicas": (role(replicas=2), role(replicas=4, minReplicas=1), ""),
    "limit of an array": (
        run_object(array={"indices": "0-9"}),
        run_object(array={"indices": "0-9", "parallelism": 3, "stop": "1-2"}), "",
    ),
    "indices of an array": (
        run_object(array={"indices": "0-9"}), run_object(array={"indices": "0-8"}),
        "spec.array.indices",
    ),
    "array added": (run_object(), run_object(array={"indices": "0-9"}), "spec.array"),
    "dependency added": (run_object(), run_object(after=[{"run": "a"}]), "spec.after"),
    "labels": (run_object(), run_object() | {"metadata": {"name": "sample", "namespace": "default",
                                                          "labels": {"a": "b"}}}, ""),
    "a default that is spelled out": (run_object(), run_object(framework="process"), ""),
    "framework": (run_object(), run_object(framework="mpi"), "spec.framework"),
    "user": (run_object(user="a"), run_object(user="b"), "spec.user"),
    "code added": (run_object(), run_object(code={"digest": DIGEST}), "spec.code"),
    "preemptible": (run_object(), run_object(preemptible=False), "spec.preemptible"),
    "retries": (run_object(), run_object(retries={"limit": 9}), "spec.retries"),
    "command": (role(), role(command=["false"]), "spec.roles[0].command"),
    "env": (role(), role(env={"A": "1"}), "spec.roles[0].env"),
    "resources": (role(), role(resources={"cpu": 2}), "spec.roles[0].resources"),
    "role renamed": (role(name="a"), role(name="b"), "spec.roles"),
    "role added": (
        role(), run_object(roles=[{"command": ["true"]}, {"name": "x", "command": ["x"]}]),
        "spec.roles",
    ),
    "template of a cron run": (
        cron_run(), cron_run(template={"spec": run_spec(roles=[{"command": ["false"]}])}), "",
    ),
    "parent of a queue": (queue_object(), queue_object(parent="other"), ""),
    "nothing of a price list": (price_list(), price_list(), ""),
    "a price": (
        price_list(), price_list(entries=[{"device": "machine", "rented": {"perHour": "2"}}]),
        "spec.entries",
    ),
    "minReplicas taken away": (role(replicas=2, minReplicas=1), role(replicas=2), ""),
    "env taken away": (role(env={"A": "1"}), role(), "spec.roles[0].env"),
}  # fmt: skip

REFUSED_CHANGES: dict[type[Object], tuple[Json, Json]] = {
    run.Run: (named(run_object(), "judged"), run_object(framework="mpi")),
    pricelist.PriceList: (named(price_list(), "judged"), price_list(currency="USD")),
}
"""Of each kind of which something may not change, one change that is refused."""
