"""Puts objects into a cluster by server-side apply, reads what is there, and takes it out again.

Applying twice changes nothing, and what others own of an object (a queue's guarantee, a lease's
holder) stays theirs. Every step may be repeated after it broke off.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Literal

from windlass.install import names
from windlass.install.names import Object
from windlass.install.render import Certificates, Part
from windlass.kinds.run import FINALIZER_LEDGER
from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore

Outcome = Literal["created", "changed", "unchanged", "deleted", "absent"]

_PLURALS = {
    "CustomResourceDefinition": "customresourcedefinitions",
    "PriorityClass": "priorityclasses",
    "APIService": "apiservices",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
}
"""Kinds whose plural is not the small name with an s."""
_FROM_1_36 = ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding")
"""Kinds that older clusters do not serve; docs/kubernetes.md says what is missing there."""
_THEIRS = ("Queue",)
"""Kinds that are made if they are not there and never touched again: they are the users'."""


async def apply(
    store: KubernetesStore, part: Part, *, dry_run: bool = False
) -> AsyncIterator[tuple[Object, Outcome]]:
    for obj in part.objects:
        yield obj, await _apply(store, obj, dry_run=dry_run)


async def delete(
    store: KubernetesStore, objects: Iterable[Object]
) -> AsyncIterator[tuple[Object, Outcome]]:
    for obj in objects:
        answer = await _send(store, "DELETE", path_of(obj), {"propagationPolicy": "Background"})
        yield obj, "absent" if answer is None else "deleted"


async def release_runs(store: KubernetesStore) -> int:
    """Takes off our hold on Runs: nobody is left who would, and their kind could not go."""
    root = "/apis/windlass.dev/v1alpha1"
    listed = await _send(store, "GET", f"{root}/runs")
    everything = [each["metadata"] for each in (listed or {}).get("items") or ()]
    held = [each for each in everything if FINALIZER_LEDGER in (each.get("finalizers") or ())]
    for each in held:
        path = f"{root}/namespaces/{each['namespace']}/runs/{each['name']}"
        others = [name for name in each["finalizers"] if name != FINALIZER_LEDGER]
        # With the version that was read: what others add meanwhile is not taken off.
        metadata = {"finalizers": others, "resourceVersion": each["resourceVersion"]}
        try:
            await _send(
                store, "PATCH", path, {"metadata": metadata},
                content_type="application/merge-patch+json",
            )  # fmt: skip
        except errors.Conflict:
            return await release_runs(store)
    return len(held)


async def read(store: KubernetesStore, path: str) -> Object | None:
    """An object as it is in the cluster; None if it is not, or its kind is not served."""
    return await _send(store, "GET", path)


async def known_options(store: KubernetesStore) -> dict[str, str] | None:
    """What an installation was made with; None if there is none."""
    found = await read(store, f"/api/v1/namespaces/{names.SYSTEM}/configmaps/{names.INSTALLATION}")
    return None if found is None else dict(found.get("data") or {})


async def known_certificates(store: KubernetesStore) -> Certificates | None:
    secrets = f"/api/v1/namespaces/{names.SYSTEM}/secrets"
    authority = await read(store, f"{secrets}/{names.AUTHORITY}")
    served = await read(store, f"{secrets}/{names.SERVER_TLS}")
    if authority is None or served is None:
        return None
    try:
        return Certificates(
            *(_text(authority, key) for key in ("ca.crt", "ca.key", "bundle.crt")),
            *(_text(served, key) for key in ("tls.crt", "tls.key")),
        )
    except KeyError:
        return None


async def left_over(store: KubernetesStore, parts: Sequence[Part]) -> list[Object]:
    """What an earlier version installed and this one does not know any more."""
    wanted = {path_of(obj) for part in parts for obj in part.objects}
    samples = {
        path_of(obj).rpartition("/")[0]: obj
        for part in parts
        for obj in part.objects
        if obj["kind"] not in ("CustomResourceDefinition", "Namespace", *_THEIRS)
    }
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


async def _apply(store: KubernetesStore, obj: Object, *, dry_run: bool) -> Outcome:
    path = path_of(obj)
    before = await read(store, path)
    if obj["kind"] in _THEIRS:
        if before is None:
            tried = [("dryRun", "All")] if dry_run else []
            await _send(store, "POST", path.rpartition("/")[0], obj, tried)
        return "created" if before is None else "unchanged"
    query = [("fieldManager", names.MANAGER), ("force", "true")]
    after = await _send(
        store, "PATCH", path, obj, [*query, ("dryRun", "All")] if dry_run else query,
        content_type="application/apply-patch+yaml",
    )  # fmt: skip
    if after is None and obj["kind"] in _FROM_1_36:
        return "absent"
    if after is None:
        raise errors.NotFound(f"the cluster does not know the kind {obj['kind']} of {path}")
    if before is None:
        return "created"
    return "unchanged" if _substance(before) == _substance(after) else "changed"


def _substance(obj: Object) -> Object:
    """What an apply may change. An object's status, or a lease, moves by itself meanwhile."""
    moving = ("status", "spec") if obj["kind"] == "Lease" else ("status",)
    metadata = {
        key: value
        for key, value in obj["metadata"].items()
        if key not in ("resourceVersion", "managedFields")
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
    """The answer; None if there is no such thing. JSON is YAML, so it is sent as both."""
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
