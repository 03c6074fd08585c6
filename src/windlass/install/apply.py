"""Puts objects into a cluster by server-side apply, reads what is there, and takes it out again.

Applying twice changes nothing, and what others own of an object (a queue's guarantee, a lease's
holder) stays theirs. Every step may be repeated after it broke off.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Literal

from windlass.install import names
from windlass.install.manifests import monitoring
from windlass.install.manifests.render import Certificates, Part
from windlass.install.names import Object
from windlass.kinds.types.run import FINALIZER_ARRAY, FINALIZER_LEDGER
from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore

Outcome = Literal["created", "changed", "unchanged", "deleted", "absent"]

_PLURALS = {
    "CustomResourceDefinition": "customresourcedefinitions",
    "PriorityClass": "priorityclasses",
    "APIService": "apiservices",
    "NetworkPolicy": "networkpolicies",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
}
"""Kinds whose plural is not the lower-case name with an s."""
_FROM_1_36 = ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding")
_OPTIONAL = (*_FROM_1_36, *monitoring.OPERATOR)
"""Kinds that not all clusters serve: older ones, and those without the Prometheus Operator;
docs/guide/kubernetes.md says what is missing there."""
_FINALIZERS = {FINALIZER_ARRAY, FINALIZER_LEDGER}
_ROUNDS = 10
_LOOK, _GONE = 0.2, 60.0
_SERVER = f"/apis/apps/v1/namespaces/{names.SYSTEM}/statefulsets/{names.SERVER}"
_THEIRS = ("Queue",)
"""Kinds that are created if they are missing and never changed: they belong to the users."""


async def apply(
    store: KubernetesStore, part: Part, *, dry_run: bool = False
) -> AsyncIterator[tuple[Object, Outcome]]:
    for obj in part.objects:
        yield obj, await apply_one(store, obj, dry_run=dry_run)


async def delete(
    store: KubernetesStore, objects: Iterable[Object]
) -> AsyncIterator[tuple[Object, Outcome]]:
    for obj in objects:
        answer = await _send(store, "DELETE", path_of(obj), {"propagationPolicy": "Background"})
        yield obj, "absent" if answer is None else "deleted"


async def release_all_runs(store: KubernetesStore) -> int:
    """Removes our finalizers from all Runs; returns how many had one. After an uninstall nothing
    else removes them: neither a Run nor its namespace nor the CustomResourceDefinition could
    be deleted. Repeated, because a controller that is stopping may put it back once more."""
    released = 0
    for _ in range(_ROUNDS):
        found = await _release_runs(store)
        released = max(released, found)
        if not found:
            break
    return released


async def _release_runs(store: KubernetesStore) -> int:
    root = "/apis/windlass.dev/v1alpha1"
    listed = await _send(store, "GET", f"{root}/runs")
    everything = [each["metadata"] for each in (listed or {}).get("items") or ()]
    found = [each for each in everything if _FINALIZERS & {*(each.get("finalizers") or ())}]
    for each in found:
        path = f"{root}/namespaces/{each['namespace']}/runs/{each['name']}"
        others = [name for name in each["finalizers"] if name not in _FINALIZERS]
        # With the version that was read: finalizers that were added meanwhile are not removed.
        metadata = {"finalizers": others, "resourceVersion": each["resourceVersion"]}
        try:
            await _send(
                store, "PATCH", path, {"metadata": metadata},
                content_type="application/merge-patch+json",
            )  # fmt: skip
        except errors.Conflict:
            continue  # the next round takes it
    return len(found)


async def create(store: KubernetesStore, obj: Object, path: str) -> Object | None:
    return await _send(store, "POST", path.rpartition("/")[0], obj)


async def remove(store: KubernetesStore, path: str) -> None:
    """At once; nothing happens if it does not exist."""
    await _send(store, "DELETE", path, {"gracePeriodSeconds": 0})


async def forget_volume(store: KubernetesStore) -> None:
    """Removes the server with its volume claim, which was never bound: there is no data in it, and
    the server never ran. The next apply creates both anew."""
    await _send(store, "DELETE", _SERVER, {"propagationPolicy": "Background"})
    await _gone(store, _SERVER)
    await remove(store, f"/api/v1/namespaces/{names.SYSTEM}/pods/{names.SERVER}-0")
    await remove(store, names.CLAIM_PATH)
    await _gone(store, names.CLAIM_PATH)


async def _gone(store: KubernetesStore, path: str) -> None:
    async with asyncio.timeout(_GONE):
        while await read(store, path) is not None:  # noqa: ASYNC110 (of the cluster)
            await asyncio.sleep(_LOOK)


async def read(store: KubernetesStore, path: str) -> Object | None:
    """The object in the cluster; None if it does not exist or its kind is not served."""
    return await _send(store, "GET", path)


async def known_options(store: KubernetesStore) -> dict[str, str] | None:
    """The options of the installation; None if there is none."""
    found = await read(store, f"/api/v1/namespaces/{names.SYSTEM}/configmaps/{names.INSTALLATION}")
    return None if found is None else dict(found.get("data") or {})


async def known_certificates(store: KubernetesStore) -> Certificates | None:
    secrets = f"/api/v1/namespaces/{names.SYSTEM}/secrets"
    authority = await read(store, f"{secrets}/{names.AUTHORITY}")
    served = await read(store, f"{secrets}/{names.SERVER_TLS}")
    measured = await read(store, f"{secrets}/{names.METRICS_TLS}")
    return certificates_of(authority, served, measured)


def certificates_of(
    authority: Object | None, served: Object | None, measured: Object | None
) -> Certificates | None:
    """What the Secrets of an installation contain."""
    if authority is None or served is None:
        return None
    # Installations of before had no certificate for metrics: "" makes one.
    measured = measured or {"data": {}}
    try:
        return Certificates(
            *(_text(authority, key) for key in ("ca.crt", "ca.key", "bundle.crt")),
            *(_text(served, key) for key in ("tls.crt", "tls.key")),
            *(
                _text(measured, key) if measured["data"].get(key) else ""
                for key in ("tls.crt", "tls.key")
            ),
        )
    except KeyError:
        return None


async def left_over(store: KubernetesStore, parts: Sequence[Part]) -> list[Object]:
    """Objects of an earlier version that this version does not have."""
    wanted = {path_of(obj) for part in parts for obj in part.objects}
    samples = {
        path_of(obj).rpartition("/")[0]: obj
        for part in parts
        for obj in part.objects
        if obj["kind"] not in ("CustomResourceDefinition", "Namespace", *_THEIRS)
    }
    for kind in monitoring.OPERATOR:  # also when monitoring was switched off
        sample: Object = {
            "apiVersion": "monitoring.coreos.com/v1", "kind": kind,
            "metadata": {"name": "any", "namespace": names.SYSTEM},
        }  # fmt: skip
        samples[path_of(sample).rpartition("/")[0]] = sample
    found: list[Object] = []
    for collection, sample in samples.items():
        query = [("labelSelector", f"app.kubernetes.io/managed-by={names.MANAGER}")]
        listed = await _send(store, "GET", collection, query=query)
        for each in (listed or {}).get("items") or ():
            whole = {"apiVersion": sample["apiVersion"], "kind": sample["kind"], **each}
            if path_of(whole) not in wanted:
                found.append(whole)
    return found


def path_of(obj: Mapping[str, Any]) -> str:
    group, _, version = str(obj["apiVersion"]).rpartition("/")
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    kind, metadata = obj["kind"], obj["metadata"]
    plural = _PLURALS.get(kind) or f"{kind.lower()}s"
    if metadata.get("namespace"):
        root += f"/namespaces/{metadata['namespace']}"
    return f"{root}/{plural}/{metadata['name']}"


def title(obj: Mapping[str, Any]) -> str:
    return f"{obj['kind']}/{obj['metadata']['name']}"


async def apply_one(store: KubernetesStore, obj: Object, *, dry_run: bool) -> Outcome:
    path = path_of(obj)
    before = await read(store, path)
    if obj["kind"] in _THEIRS:
        if before is None:
            tried = [("dryRun", "All")] if dry_run else []
            await _send(store, "POST", path.rpartition("/")[0], obj, tried)
        return "created" if before is None else "unchanged"
    query = [("fieldManager", names.MANAGER), ("force", "true")]
    if dry_run:
        query.append(("dryRun", "All"))
    form = "application/apply-patch+yaml"
    try:
        after = await _send(store, "PATCH", path, obj, query, content_type=form)
    except errors.Invalid:
        if obj["kind"] != "StatefulSet" or before is None or dry_run:
            raise
        # A field of it cannot change: made anew, around the pod and the volume that it has.
        await _send(store, "DELETE", path, {"propagationPolicy": "Orphan"})
        await _gone(store, path)
        after = await _send(store, "PATCH", path, obj, query, content_type=form)
    if after is None and obj["kind"] in _OPTIONAL:
        return "absent"
    if after is None:
        raise errors.NotFound(f"the cluster does not know the kind {obj['kind']} of {path}")
    if before is None:
        return "created"
    return "unchanged" if _substance(before) == _substance(after) else "changed"


def _substance(obj: Object) -> Object:
    """The part of an object that an apply may change: not the status, nor what the holder of a
    lease writes into it."""
    moving = ("status", "spec") if obj["kind"] == "Lease" else ("status",)
    metadata = {
        key: value
        for key, value in obj["metadata"].items()
        if key not in ("resourceVersion", "managedFields")
        and not (key == "annotations" and obj["kind"] == "Lease")
    }
    return {key: value for key, value in obj.items() if key not in moving} | {"metadata": metadata}


async def _send(
    store: KubernetesStore,
    method: str,
    path: str,
    body: Any = None,
    query: Sequence[tuple[str, str]] = (),
    content_type: str = "application/json",
) -> Object | None:
    """The response; None for 404. JSON is valid YAML, so the body is sent as either."""
    data = None if body is None else json.dumps(body).encode()
    status, _, answer = await store.raw(
        method, path, body=data, query=query, content_type=content_type
    )
    try:
        found: Object = json.loads(answer)
    except ValueError:
        found = {"message": answer[:300].decode(errors="replace")}
    if status == 404:
        return None
    if status >= 300:
        raise errors.from_status(found, status)
    return found


def _text(secret: Object, key: str) -> str:
    return base64.b64decode(secret["data"][key]).decode()
