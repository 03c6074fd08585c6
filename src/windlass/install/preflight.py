"""Finds problems of a cluster that affect Windlass, each with its remedy.

`windlass doctor` shows them beside those of the machine. The checks only read, or use dry runs and
access reviews; what the caller may not read is reported as unknown.
"""

from __future__ import annotations

import dataclasses
import email.utils
import json
from collections.abc import AsyncIterator
from typing import Any, Literal

from windlass.install import apply, certificates, drift, names, readiness
from windlass.install.manifests import render
from windlass.install.names import Object
from windlass.install.options import Options
from windlass.kinds.values import times
from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore
from windlass.version import VERSION

State = Literal["ok", "limited", "missing"]

OLDEST = (1, 34)
FILLS_IN = (1, 36)
_MOST_SKEW = 5.0
"""Seconds. Leases believe no other clock; start times and expected starts do."""
_CERTIFICATE_DAYS = 60
_DEVICES = {
    "nvidia.com/gpu": ("nvidia", "the NVIDIA device plug-in (or GPU operator)"),
    "amd.com/gpu": ("amd", "the AMD GPU device plug-in"),
}
"""Extended resource -> the word in node labels that says the hardware is there, and its plug-in."""
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_MOST_NAMED = 8
_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    name: str
    state: State
    found: str
    meaning: str = ""
    remedy: str = ""


async def look(store: KubernetesStore) -> AsyncIterator[Finding]:
    """All findings in their display order. Changes nothing."""
    yield await _version(store)
    yield await _clock(store)
    known = await _known(store)
    yield await permissions(store, "install" if known is None else "upgrade")
    if known is None:
        yield Finding(
            "parts", "missing", "Windlass is not installed on this cluster", "",
            "Install it: windlass install",
        )  # fmt: skip
    else:
        yield await _parts(store, Options.read(known))
        yield await _objects(store, known)
        yield await _certificate(store)
    yield await storage(store, Options.read(known or {}))
    yield await _devices(store)
    yield await _admission(store)


async def _version(store: KubernetesStore) -> Finding:
    found = await apply.read(store, "/version") or {}
    number = version_of(found)
    text = str(found.get("gitVersion", "unknown"))
    if number < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        return Finding(
            "version", "missing", text, f"Windlass needs Kubernetes {wanted} or newer.",
            "Upgrade the cluster.",
        )  # fmt: skip
    if number < FILLS_IN:
        return Finding(
            "version", "limited", text,
            "Runs that do not say whose they are stay without a user, and cost one write more.",
            "Nothing is needed; from Kubernetes 1.36 on the cluster fills it in.",
        )  # fmt: skip
    return Finding("version", "ok", text)


def version_of(found: Object) -> tuple[int, int]:
    digits = ["".join(filter(str.isdigit, str(found.get(key) or ""))) for key in ("major", "minor")]
    return int(digits[0] or 0), int(digits[1] or 0)


async def _clock(store: KubernetesStore) -> Finding:
    _, headers, _ = await store.raw("GET", "/version")
    date = headers.get("Date", "")
    try:
        skew = (email.utils.parsedate_to_datetime(date) - times.now()).total_seconds()
    except (TypeError, ValueError):
        return Finding("clock", "limited", "the API server sends no Date header")
    if abs(skew) > _MOST_SKEW:
        return Finding(
            "clock", "limited", f"this machine and the API server differ by {abs(skew):.0f} s",
            "Expected starts and ages are shown wrong by as much; nothing is decided by it.",
            "Synchronise the clocks (chrony, systemd-timesyncd).",
        )  # fmt: skip
    return Finding("clock", "ok", f"within {_MOST_SKEW:g} s of the API server's")


async def _known(store: KubernetesStore) -> dict[str, str] | None:
    try:
        return await apply.known_options(store)
    except errors.Forbidden:
        return {}


async def permissions(store: KubernetesStore, word: str) -> Finding:
    """Whether the caller could `word`: install or upgrade."""
    wanted = {
        "create and bind cluster roles": ("*", "rbac.authorization.k8s.io", "clusterroles"),
        "create resource definitions": (
            "create", "apiextensions.k8s.io", "customresourcedefinitions",
        ),
        "register APIs": ("create", "apiregistration.k8s.io", "apiservices"),
        "create namespaces": ("create", "", "namespaces"),
    }  # fmt: skip
    refused = [sentence for sentence, what in wanted.items() if not await _may(store, *what)]
    if not refused:
        return Finding("permissions", "ok", "those of a cluster administrator")
    return Finding(
        "permissions", "limited", f"you may not {', '.join(refused)}",
        f"You can use Windlass here, but not {word} it.",
        f"Ask a cluster administrator to run windlass {word}.",
    )  # fmt: skip


async def storage(store: KubernetesStore, options: Options) -> Finding:
    """Whether the volume of the server gets bound: a class to make it, or a volume that fits."""
    if options.storage:
        return Finding("storage", "ok", "object storage: the server has no volume")
    root = "/apis/storage.k8s.io/v1/storageclasses"
    try:
        claim = await apply.read(store, names.CLAIM_PATH) or {}
        if claim.get("status", {}).get("phase") == "Bound":
            return Finding("storage", "ok", "the volume of the server is bound")
        classes = (await apply.read(store, root) or {}).get("items") or []
        volumes = (await apply.read(store, "/api/v1/persistentvolumes") or {}).get("items") or []
    except errors.Forbidden:
        return Finding("storage", "limited", "you may not look at storage classes and volumes")
    free = {
        each["spec"].get("storageClassName", "")
        for each in volumes
        if each.get("status", {}).get("phase") in ("Available", None, "Pending")
    }
    known = sorted(each["metadata"]["name"] for each in classes)
    usual = [
        each["metadata"]["name"]
        for each in classes
        if (each["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"
    ]
    wanted = options.storage_class
    if wanted in known or wanted in free or (not wanted and usual):
        chosen = wanted or next(iter(usual), "")
        return Finding(
            "storage", "ok", f"storage class {chosen}" if chosen else "a volume without a class"
        )
    choice = f"windlass install --storage-class NAME ({', '.join(known)})" if known else (
        "Install a provisioner of volumes (for example local-path-provisioner) and make its "
        "storage class the default, or use --storage with an object store"
    )  # fmt: skip
    found = f"there is no storage class {wanted}" if wanted else "no storage class is the default"
    return Finding(
        "storage", "missing", found, "The server would wait for its volume for ever.", choice
    )


async def _may(store: KubernetesStore, verb: str, group: str, resource: str) -> bool:
    attributes = {"verb": verb, "group": group, "resource": resource}
    body = {
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }  # fmt: skip
    status, _, answer = await store.raw("POST", _REVIEW, body=json.dumps(body).encode())
    return status in (200, 201) and bool(json.loads(answer)["status"].get("allowed"))


async def _parts(store: KubernetesStore, options: Options) -> Finding:
    """Whether all that is installed works now."""
    listed = render.parts(options, render.UNMADE)
    broken = []
    for part in listed:
        try:
            missing = await readiness.missing_of(store, part)
        except errors.Forbidden:
            return Finding("parts", "limited", "you may not look at windlass-system")
        if missing:
            broken.append(missing)
    if not broken:
        return Finding("parts", "ok", ", ".join(part.name for part in listed))
    return Finding(
        "parts", "missing", "; ".join(broken)[:600], "What this part does stands still.",
        f"kubectl get pods,events -n {names.SYSTEM}, then windlass upgrade",
    )  # fmt: skip


async def _objects(store: KubernetesStore, known: dict[str, str]) -> Finding:
    """Whether what stands is what this command would install."""
    if known.get("version", VERSION) != VERSION:
        return Finding(
            "objects", "limited", f"installed by version {known['version']}, this is {VERSION}",
            "What stands is not compared with what that version installed.",
            "Use windlass of the installed version, or upgrade: windlass upgrade",
        )  # fmt: skip
    try:
        made = await apply.known_certificates(store)
        parts = render.parts(Options.read(known), made or render.UNMADE)
        found = await drift.find(store, parts)
    except errors.Forbidden:
        return Finding(
            "objects", "limited", "you may not apply the objects of an installation",
            "What stands is not compared with what was installed.",
            "Have a cluster administrator run windlass doctor.",
        )  # fmt: skip
    if not found:
        return Finding("objects", "ok", "as windlass install writes them")
    listed_by_word = [
        f"{word}: {', '.join(listed[:_MOST_NAMED])}" + (
            f" and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
        )
        for word, listed in (("missing", found.missing), ("changed", found.changed))
        if listed
    ]  # fmt: skip
    return Finding(
        "objects", "missing" if found.missing else "limited", "; ".join(listed_by_word),
        "What depends on them does not work, or works otherwise than installed.",
        "windlass upgrade writes them again.",
    )  # fmt: skip


async def _certificate(store: KubernetesStore) -> Finding:
    try:
        known = await apply.known_certificates(store)
    except errors.Forbidden:
        return Finding("certificate", "limited", "you may not look at windlass-system")
    if known is None:
        return Finding(
            "certificate", "missing", "the server has none", "No client can use the platform API.",
            "windlass upgrade",
        )  # fmt: skip
    left = (certificates.expires(known.certificate) - times.now()).days
    if left > _CERTIFICATE_DAYS:
        return Finding("certificate", "ok", f"good for {left} days")
    return Finding(
        "certificate", "limited", f"good for {left} days more",
        "After that no client can use the platform API.", "windlass upgrade",
    )  # fmt: skip


async def _devices(store: KubernetesStore) -> Finding:
    """Nodes whose labels name a device that no device plug-in reports."""
    try:
        listed = await apply.read(store, "/api/v1/nodes") or {}
    except errors.Forbidden:
        return Finding("devices", "limited", "you may not look at nodes")
    counted: dict[str, int] = {}
    silent: dict[str, list[str]] = {}
    for node in listed.get("items") or ():
        has: dict[str, Any] = (node.get("status") or {}).get("allocatable") or {}
        labels = " ".join(node["metadata"].get("labels") or ()).lower()
        for resource, (word, plugin) in _DEVICES.items():
            count = int(has.get(resource, 0))
            counted[resource] = counted.get(resource, 0) + count
            if not count and f"{word}.com/gpu" in labels:
                silent.setdefault(plugin, []).append(node["metadata"]["name"])
    if silent:
        plugin, nodes = next(iter(silent.items()))
        return Finding(
            "devices", "limited", f"{', '.join(nodes[:5])} say that they have GPUs but offer none",
            "Runs that ask for them will not start there.", f"Install {plugin}.",
        )  # fmt: skip
    found = [f"{count} {resource}" for resource, count in counted.items() if count]
    return Finding("devices", "ok", ", ".join(found) or "no GPUs on any node")


async def _admission(store: KubernetesStore) -> Finding:
    """Whether the cluster admits the components' pods; tried by a dry run of each."""
    refused, unasked = [], []
    for part in render.parts(Options(), render.UNMADE):
        for obj in part.objects:
            template = obj.get("spec", {}).get("template")
            if obj["kind"] not in ("Deployment", "StatefulSet", "DaemonSet") or not template:
                continue
            try:
                problem = await _try_pod(store, obj, template)
            except errors.Forbidden as refusal:
                unasked.append(refusal.message)
                continue
            if problem:
                refused.append(f"{obj['metadata']['name']}: {problem}")
    if unasked and not refused:
        return Finding(
            "admission", "limited", "you may not create pods in the components' namespaces",
            unasked[0],
            "Have a cluster administrator run windlass doctor.",
        )  # fmt: skip
    if not refused:
        return Finding("admission", "ok", "the pods of Windlass are admitted")
    return Finding(
        "admission", "missing", "; ".join(refused)[:600], "These parts cannot start.",
        "Exempt the namespaces windlass-system and windlass-nodes from the rule, or change it.",
    )  # fmt: skip


async def _try_pod(store: KubernetesStore, obj: Object, template: Object) -> str:
    """Why the pod would be rejected; "": it is admitted. Raises Forbidden if the caller may not
    create pods."""
    # A StatefulSet's controller adds a volume for each claim; an empty one is enough for admission.
    claims = [each["metadata"]["name"] for each in obj["spec"].get("volumeClaimTemplates") or ()]
    volumes = [{"name": name, "emptyDir": {}} for name in claims]
    spec = {**template["spec"], "volumes": [*(template["spec"].get("volumes") or ()), *volumes]}
    metadata = {"generateName": "windlass-doctor-", **template["metadata"]}
    namespace = obj["metadata"]["namespace"]
    message = await _refusal(store, namespace, metadata, spec)
    if f'namespaces "{namespace}" not found' in message:
        # Before an installation, cluster-wide rules are tried in a namespace that always exists.
        # Its Pod Security level does not matter: the components' namespaces set their own.
        common = {
            key: spec[key] for key in spec.keys() - {"serviceAccountName", "priorityClassName"}
        }
        message = await _refusal(store, "default", metadata, common)
        return "" if "violates PodSecurity" in message else message
    absent = "not found" in message or "no PriorityClass" in message
    return "" if absent else message


async def _refusal(store: KubernetesStore, namespace: str, metadata: Object, spec: Object) -> str:
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    status, _, answer = await store.raw(
        "POST", f"/api/v1/namespaces/{namespace}/pods", body=json.dumps(body).encode(),
        query=[("dryRun", "All")],
    )  # fmt: skip
    message = "" if status < 300 else str(json.loads(answer).get("message", ""))
    if "cannot create resource" in message:
        raise errors.Forbidden(message)
    return message
