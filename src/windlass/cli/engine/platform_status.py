"""The state of an installation: its parts, their leaders and their work, nodes and runs.

`windlass status` shows it and `windlass debug-dump` saves it. What the caller may not read is left
out and named in `unreadable`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Awaitable, Iterator
from typing import Any, TypeVar

from windlass.cli.lib import client_session
from windlass.store import errors

T = TypeVar("T")
Facts = dict[str, Any]

_SYSTEM = "windlass-system"
_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{_SYSTEM}/leases"
_PHASES = ("Running", "Starting", "Stopping", "Queued", "Succeeded", "Failed", "Stopped")
_PARTS = ("scheduler", "controllers", "server", "agents")
_LEADERS = {"windlass-scheduler": "scheduler", "windlass-controllers": "controllers",
            "windlass-ledger": "ledger"}  # fmt: skip


async def read(session: client_session.Session) -> Facts:
    from windlass.kinds.types import core, run

    version = await session.read("/version")
    kubernetes = str(version.get("gitVersion", ""))
    unreadable: list[str] = []

    async def allowed(what: str, reading: Awaitable[T], otherwise: T) -> T:
        try:
            return await reading
        except errors.Forbidden:
            unreadable.append(what)
            return otherwise

    nodes = await allowed("nodes", _items(session, core.Node), [])
    everywhere = await allowed("runs of all namespaces", _items(session, run.Run), None)
    runs = everywhere if everywhere is not None else await allowed(
        f"runs of {session.namespace}", _items(session, run.Run, session.namespace), []
    )  # fmt: skip
    phases = [one.status.phase for one in runs or ()]
    embedded = "windlass" in kubernetes
    return {
        "address": session.store.access.address,
        "kubernetes": None if embedded else kubernetes,
        "installed": None if embedded else await allowed("the installation", _parts(session), None),
        "leaders": await allowed("the leaders", leaders(session), []),
        "nodes": [
            {
                "name": node.name,
                "ready": node.is_ready,
                "allocatable": node.status.allocatable or {},
            }
            for node in nodes
        ],
        "runs": {phase: phases.count(phase) for phase in _PHASES},
        "unreadable": unreadable,
    }


def problems(facts: Facts) -> Iterator[str]:
    """What does not work, one sentence each."""
    installed = facts["installed"]
    if facts["kubernetes"] and installed is None and "the installation" not in facts["unreadable"]:
        yield "Windlass is not installed on this cluster."
    for part in (installed or {}).get("parts", ()):
        if part["problem"]:
            yield f"{part['name']}: {part['problem']}"
    # The embedded engine has one process, which takes all leases moments after its start.
    for leader in facts["leaders"] if facts["kubernetes"] else ():
        if not leader["leads"]:
            yield f"{leader['name']}: no process leads; its work stands still."


async def _items(session: client_session.Session, kind: type[Any], namespace: str = "") -> Any:
    return (await session.store.list(kind, namespace)).items


async def _parts(session: client_session.Session) -> Facts | None:
    """Version, image and parts of the installation on a cluster; None if there is none."""
    apply: Any = importlib.import_module("windlass.install.apply")
    render: Any = importlib.import_module("windlass.install.manifests.render")
    readiness: Any = importlib.import_module("windlass.install.readiness")
    options: Any = importlib.import_module("windlass.install.options")
    known = await apply.known_options(session.store)
    if known is None:
        return None
    chosen = options.Options.read(known)
    listed = [
        {
            "name": part.name,
            "ready": await _ready(session, apply, part),
            "problem": await readiness.missing_of(session.store, part),
        }
        for part in render.parts(chosen, render.UNMADE)
        if part.name in _PARTS
    ]
    return {"version": known.get("version"), "image": known.get("image"), "parts": listed}


async def _ready(session: client_session.Session, apply: Any, part: Any) -> str:
    """`2 of 2`, from the status of its Deployment, StatefulSet or DaemonSet."""
    for obj in part.objects:
        if obj["kind"] in ("Deployment", "StatefulSet", "DaemonSet"):
            found = await apply.read(session.store, apply.path_of(obj)) or {}
            status = found.get("status") or {}
            if obj["kind"] == "DaemonSet":
                wanted, ready = "desiredNumberScheduled", "numberReady"
                return f"{status.get(ready, 0)} of {status.get(wanted, 0)}"
            return f"{status.get('readyReplicas', 0)} of {obj['spec'].get('replicas', 1)}"
    return ""


async def leaders(session: client_session.Session) -> list[Facts]:
    """From the leases: which process leads, since when, and what it last reported of its work."""
    from windlass.control.runtime import work_report
    from windlass.kinds.values import times

    found = []
    now = times.now()
    for each in (await session.read(_LEASES)).get("items", ()):
        name = _LEADERS.get(each["metadata"]["name"])
        if name is None:
            continue
        spec = each.get("spec") or {}
        renewed = spec.get("renewTime")
        age = (now - times.parse(renewed)).total_seconds() if renewed else None
        holder = spec.get("holderIdentity") or None
        # Twice the duration: the clocks of the two machines may differ.
        valid = 2 * float(spec.get("leaseDurationSeconds") or 0)
        text = (each["metadata"].get("annotations") or {}).get(work_report.ANNOTATION)
        found.append(
            {
                "name": name,
                "leads": holder is not None and age is not None and age < valid,
                "holder": holder,
                "acquiredAt": spec.get("acquireTime"),
                "renewedSecondsAgo": None if age is None else round(max(0.0, age), 1),
                "changes": spec.get("leaseTransitions", 0),
                "work": json.loads(text) if text else None,
            }
        )
    return sorted(found, key=lambda each: list(_LEADERS.values()).index(each["name"]))
