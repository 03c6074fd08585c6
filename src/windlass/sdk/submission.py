"""Creates a Run, once: a repeated request cannot create it twice.

The answer to a request can be lost, for instance because the server was killed. The client then
sends the request again. A random mark in the object tells its own Run from another of the same
name.
"""

from __future__ import annotations

import graphlib
import json
from collections.abc import Sequence
from typing import Any

from windlass.kinds import annotations as known
from windlass.kinds import codec
from windlass.kinds.types import core, run
from windlass.sdk import platform_api, run_builder, watching
from windlass.sdk.errors import CannotRun
from windlass.store import errors
from windlass.store.interface import Preconditions
from windlass.store.kubernetes.client import KubernetesStore

_TRIES = 3


async def create(store: KubernetesStore, value: dict[str, Any]) -> run.Run:
    """Creates a Run as `run_builder.mark` left it, and returns it as the server stored it."""
    metadata = value["metadata"]
    for tries_left in range(_TRIES - 1, -1, -1):
        try:
            return codec.from_dict(run.Run, await store.create_raw(run.Run, value))
        except errors.AnswerLost:
            if not tries_left:
                raise
        except errors.AlreadyExists:
            found = await store.get(run.Run, metadata["name"], metadata["namespace"])
            if not _is_same(found, metadata):
                raise
            return found
    raise AssertionError("unreachable")  # pragma: no cover


async def create_run(store: KubernetesStore, wanted: run.Run) -> run.Run:
    """Marks and creates a Run."""
    value = codec.to_dict(wanted)
    run_builder.mark(value)
    return await create(store, value)


async def remove_ended(store: KubernetesStore, name: str, namespace: str) -> None:
    """Deletes the Run of this name, if there is one, and returns when it is gone; Conflict if it
    has not ended."""
    try:
        found = await store.get(run.Run, name, namespace)
    except errors.NotFound:
        return
    if not found.finished:
        raise errors.Conflict(
            f"run {name} has not ended ({found.status.phase}), so it is not replaced; stop it "
            f"first: windlass stop {name}"
        )
    uid = Preconditions(uid=found.uid)
    if await store.delete(run.Run, name, namespace, preconditions=uid) is not None:
        await watching.gone(store, found)


async def missing(store: KubernetesStore, value: dict[str, Any], namespace: str) -> list[str]:
    """The Secrets and ConfigMaps that a Run needs and that do not exist: `secret/NAME`. Those that
    the caller may not read are left out."""
    found = []
    for word, name in run_builder.references(value):
        kind: type[core.Secret | core.ConfigMap] = (
            core.Secret if word == "secret" else core.ConfigMap
        )
        try:
            await store.get(kind, name, namespace)
        except errors.NotFound:
            found.append(f"{kind.resource.singular}/{name}")
        except errors.Forbidden:
            continue
    return found


async def unknown_runs(
    store: KubernetesStore, values: Sequence[dict[str, Any]], namespace: str
) -> list[str]:
    """Runs that these Runs wait for and that neither exist nor are among them."""
    together = {(value.get("metadata") or {}).get("name") for value in values}
    names = {
        each["run"] for value in values for each in (value.get("spec") or {}).get("after") or ()
    }
    found = []
    for name in sorted(names - together):
        try:
            await store.get(run.Run, name, namespace)
        except errors.NotFound:
            found.append(name)
    return found


def cycle(values: Sequence[dict[str, Any]]) -> list[str]:
    """Names of Runs of which each waits for the next, and the last for the first; or none."""
    waits_for = {
        value["metadata"].get("name"): [
            each["run"] for each in (value.get("spec") or {}).get("after") or ()
        ]
        for value in values
    }
    try:
        graphlib.TopologicalSorter(waits_for).prepare()
    except graphlib.CycleError as found:
        # Of which each is waited for by the next, and the first is repeated at the end.
        return list(reversed(found.args[1][1:]))
    return []


def _is_same(found: run.Run, metadata: dict[str, Any]) -> bool:
    sent = (metadata.get("annotations") or {}).get(known.SUBMISSION)
    stored = (found.metadata.annotations or {}).get(known.SUBMISSION)
    return bool(sent) and sent == stored


async def refuse_unresolvable(store: KubernetesStore, value: dict[str, Any]) -> None:
    """Raises CannotRun if this cluster can never run the Run."""
    path = f"{platform_api.PATH}/namespaces/{value['metadata']['namespace']}/plan"
    status, _, answer = await store.raw("POST", path, body=json.dumps(value).encode())
    # A server without the platform API, or one that cannot plan now, may still accept the run.
    # Errors in the run itself are reported when it is created.
    found = platform_api.json_object(answer) if status < 300 else {}
    if found.get("reason") in platform_api.UNRESOLVABLE:
        raise CannotRun(found["reason"], found.get("message", ""), found.get("remedy", ""))


def resized(value: dict[str, Any], role: str, replicas: int) -> dict[str, Any]:
    """A new Run with the job of `value` and exactly so many replicas of a role."""
    roles = [
        {**each, "replicas": replicas, "minReplicas": replicas} if each["name"] == role else each
        for each in value["spec"]["roles"]
    ]
    # The server refuses to plan a run whose name is taken.
    metadata = {
        "name": run_builder.name_for([value["metadata"]["name"]]),
        "namespace": value["metadata"]["namespace"],
    }
    kept = {key: value[key] for key in ("apiVersion", "kind")}
    spec = {key: item for key, item in value["spec"].items() if key not in ("suspend", "stop")}
    return {**kept, "metadata": metadata, "spec": {**spec, "roles": roles}}
