"""The rules of writes for all kinds: metadata, generation, status, finalizers, grace period.

Pure functions from the old and the asked-for object to the one that is stored, as Kubernetes
defines them. `api` calls them inside the write's transaction; they do no I/O.
"""

from __future__ import annotations

import datetime
import secrets
import uuid
from typing import Any

import msgspec

from windlass.kinds import validate
from windlass.kinds.types.meta import Object, ObjectMeta
from windlass.kinds.types.resource import Resource
from windlass.store import errors
from windlass.store.embedded.options import DeleteOptions, Json, WriteOptions

PROTECTED_NAMESPACES = frozenset({"default", "windlass-system"})
FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
LONGEST_GRACE = 1 << 31
"""Seconds; a moment that far away can still be written as a date."""

_NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_KEPT_METADATA = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
_SERVER_METADATA = (*_KEPT_METADATA, "generation", "resourceVersion", "managedFields", "selfLink")
_KNOWN_METADATA = frozenset(
    {field.encode_name for field in msgspec.structs.fields(ObjectMeta)} | set(_SERVER_METADATA)
)
_CONDITIONAL_ONLY = frozenset({"leases.coordination.k8s.io"})
"""Core kinds whose replace requires a resourceVersion; kinds of windlass.dev require it too."""


def timestamp(now: float) -> str:
    moment = datetime.datetime.fromtimestamp(int(now), datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def has_generation(resource: Resource) -> bool:
    return resource.group == "windlass.dev" or resource.kind == "Pod"


# --- reading the request


def checked_body(kind: type[Object], body: Any, namespace: str, options: WriteOptions) -> Json:
    """The body as a pruned object of this kind and namespace; raises BadRequest if it is not."""
    resource = kind.resource
    if not isinstance(body, dict):
        raise errors.BadRequest(f"the body must be a {resource.kind} object")
    for field, wanted in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        found = body.get(field)
        if found is not None and found != wanted:
            raise errors.BadRequest(
                f"{field} in the data ({str(found)[:80]}) does not match the expected ({wanted})"
            )
    whole: Json = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
    whole["metadata"] = _checked_metadata(resource, body.get("metadata"), namespace)
    pruned, unknown = validate.prune(kind, whole)
    _report_unknown(unknown, options)
    return pruned


def _checked_metadata(resource: Resource, metadata: Any, namespace: str) -> Json:
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict):
        raise errors.BadRequest("metadata must be an object")
    for field in ("name", "generateName", "namespace", "uid", "resourceVersion"):
        if not isinstance(metadata.get(field, ""), str | None):
            raise errors.BadRequest(f"metadata.{field} must be a string")
    # As for a typed object: unknown and empty fields are dropped.
    given: Json = {
        key: value for key, value in metadata.items() if value and key in _KNOWN_METADATA
    }
    named = given.pop("namespace", "")
    if resource.namespaced and named and named != namespace:
        raise errors.BadRequest(
            f"the namespace of the provided object ({named[:80]}) does not match the namespace "
            f"sent on the request ({namespace})"
        )
    return given | {"namespace": namespace} if resource.namespaced else given


def _report_unknown(unknown: list[str], options: WriteOptions) -> None:
    if not unknown or options.field_validation == "Ignore":
        return
    if options.field_validation == "Strict":
        raise errors.BadRequest("strict decoding error: " + ", ".join(unknown))
    options.warnings.extend(unknown)


# --- create


def new_object(kind: type[Object], body: Json, now: float) -> Json:
    """The object that a create stores, without its revision, defaulted and validated."""
    resource = kind.resource
    metadata = dict(body["metadata"])
    if metadata.get("resourceVersion"):
        raise errors.BadRequest("resourceVersion should not be set on objects to be created")
    for field in _SERVER_METADATA:
        metadata.pop(field, None)
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = generated_name(metadata["generateName"])
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = timestamp(now)
    if has_generation(resource):
        metadata["generation"] = 1
    if resource.kind == "Namespace":
        labels = metadata.get("labels") or {}
        if isinstance(labels, dict):  # validation rejects anything else
            name = {"kubernetes.io/metadata.name": metadata.get("name", "")}
            metadata["labels"] = labels | name
    fresh = {**body, "metadata": metadata}
    if resource.has_status and resource.kind != "Node":
        fresh.pop("status", None)
    fresh = validate.defaulted(kind, fresh)
    refuse_invalid(kind, fresh, None)
    return fresh


def generated_name(prefix: str) -> str:
    return prefix[:58] + "".join(secrets.choice(_NAME_LETTERS) for _ in range(5))


def refuse_invalid(kind: type[Object], value: Json, old: Json | None) -> None:
    problems = validate.validate(kind, value, old)
    if not problems:
        return
    resource = kind.resource
    title = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    name = value["metadata"].get("name", "")
    message = "; ".join(f"{problem.path}: {problem.message}" for problem in problems)
    raise errors.Invalid(
        f'{title} "{name}" is invalid: {message}',
        causes=tuple(errors.Cause(p.path, p.message, p.reason) for p in problems),
        details={"name": name, "group": resource.group, "kind": resource.kind},
    )


# --- update


def updated_object(kind: type[Object], old: Json, asked: Json, subresource: str) -> Json:
    """The object that an update stores, without its revision. Raises if a rule forbids it."""
    resource = kind.resource
    _refuse_identity_change(resource, old, asked)
    metadata = _updated_metadata(resource, old["metadata"], asked["metadata"])
    if subresource == "status":
        # As in Kubernetes, a status update of a Pod or Node may change its annotations.
        kept = metadata if resource.kind in ("Pod", "Node") else old["metadata"]
        final = {**old, "metadata": kept}
        final.pop("status", None)
        if "status" in asked:
            final["status"] = asked["status"]
    else:
        final = {**asked, "metadata": metadata}
        if resource.has_status and subresource != "binding":
            final.pop("status", None)
            if "status" in old:
                final["status"] = old["status"]
    final = validate.defaulted(kind, final)
    if has_generation(resource) and _spec_of(final) != _spec_of(old):
        final["metadata"] = {
            **final["metadata"],
            "generation": int(old["metadata"].get("generation", 0)) + 1,
        }
    # A binding sets nodeName, which is immutable for other writes.
    refuse_invalid(kind, final, None if subresource == "binding" else old)
    return final


def _refuse_identity_change(resource: Resource, old: Json, asked: Json) -> None:
    before, after = old["metadata"], asked["metadata"]
    name = before["name"]
    if after.get("name") != name:
        raise errors.BadRequest(
            f"the name of the object ({str(after.get('name'))[:80]}) does not match the name on "
            f"the URL ({name})"
        )
    if after.get("uid") and after["uid"] != before["uid"]:
        raise conflict(
            resource, name, f"UID in precondition: {after['uid']}, UID in object: {before['uid']}"
        )
    wanted = after.get("resourceVersion")
    if wanted and wanted != before["resourceVersion"]:
        raise conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and "
            "try again",
        )


def require_version(kind: type[Object], body: Json) -> None:
    """Raises if the kind requires a resourceVersion in a replace and the body has none."""
    resource = kind.resource
    conditional = resource.group == "windlass.dev" or resource.key in _CONDITIONAL_ONLY
    if conditional and not body["metadata"].get("resourceVersion"):
        cause = errors.Cause("metadata.resourceVersion", "must be specified for an update")
        name = body["metadata"].get("name", "")
        raise errors.Invalid(
            f'{resource.key} "{name}" is invalid: metadata.resourceVersion: must be specified '
            "for an update; read the object first and send its resourceVersion back",
            causes=(cause,),
        )


def _updated_metadata(resource: Resource, old: Json, asked: Json) -> Json:
    metadata = {key: value for key, value in asked.items() if key not in _SERVER_METADATA}
    kept = {key: old[key] for key in (*_KEPT_METADATA, "generation") if key in old}
    metadata |= kept | {"resourceVersion": old["resourceVersion"]}
    if "generateName" in old:
        metadata.setdefault("generateName", old["generateName"])
    added = set(_strings(metadata.get("finalizers"))) - set(_strings(old.get("finalizers")))
    if "deletionTimestamp" in old and added:
        message = "no new finalizers can be added if the object is being deleted"
        raise errors.Invalid(
            f'{resource.kind} "{old["name"]}" is invalid: metadata.finalizers: Forbidden: '
            f"{message}, found {sorted(added)}",
            causes=(errors.Cause("metadata.finalizers", message, "FieldValueForbidden"),),
        )
    return metadata


def _strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _spec_of(value: Json) -> Json:
    """All fields but metadata and status: their changes increment `generation`."""
    return {key: part for key, part in value.items() if key not in ("metadata", "status")}


def conflict(resource: Resource, name: str, why: str) -> errors.Conflict:
    return errors.Conflict(
        f'Operation cannot be fulfilled on {resource.key} "{name}": {why}',
        details={"name": name, "group": resource.group, "kind": resource.plural},
    )


# --- delete


def refuse_delete(resource: Resource, old: Json, options: DeleteOptions) -> None:
    """Raises if a precondition fails or the namespace is protected."""
    metadata = old["metadata"]
    name = metadata["name"]
    if resource.kind == "Namespace" and name in PROTECTED_NAMESPACES:
        raise errors.Forbidden(
            f'namespaces "{name}" is forbidden: this namespace may not be deleted'
        )
    if options.uid is not None and options.uid != metadata["uid"]:
        why = f"Precondition failed: UID in precondition: {options.uid}, UID in object meta: "
        raise conflict(resource, name, why + metadata["uid"])
    wanted = options.resource_version
    if wanted is not None and wanted != metadata["resourceVersion"]:
        why = f"Precondition failed: ResourceVersion in precondition: {wanted}, "
        raise conflict(resource, name, why + f"in object meta: {metadata['resourceVersion']}")


def marked_for_deletion(
    resource: Resource, old: Json, options: DeleteOptions, now: float
) -> Json | None:
    """The terminating object, while finalizers or a grace period delay its removal; None: it is
    removed at once."""
    metadata = dict(old["metadata"])
    finalizers = _finalizers_for(_strings(metadata.get("finalizers")), options)
    grace = _grace(resource, old, options)
    if not finalizers and not grace and resource.kind != "Namespace":
        return None
    if finalizers:
        metadata["finalizers"] = finalizers
    if "deletionTimestamp" not in metadata:
        if metadata.get("generation"):
            metadata["generation"] += 1
        metadata["deletionTimestamp"] = timestamp(now + grace)
        metadata["deletionGracePeriodSeconds"] = grace
    elif grace < metadata.get("deletionGracePeriodSeconds", 0):
        metadata["deletionTimestamp"] = timestamp(now + grace)
        metadata["deletionGracePeriodSeconds"] = grace
    marked = {**old, "metadata": metadata}
    if resource.kind == "Namespace":
        marked["status"] = {**(old.get("status") or {}), "phase": "Terminating"}
    return marked


def _finalizers_for(finalizers: list[str], options: DeleteOptions) -> list[str]:
    wanted = {"Foreground": FOREGROUND, "Orphan": ORPHAN}.get(options.propagation or "")
    if options.propagation is not None:
        finalizers = [f for f in finalizers if f not in (FOREGROUND, ORPHAN) or f == wanted]
    return finalizers if wanted is None or wanted in finalizers else [*finalizers, wanted]


def _grace(resource: Resource, old: Json, options: DeleteOptions) -> int:
    if not resource.graceful:
        return 0
    spec, phase = old.get("spec") or {}, (old.get("status") or {}).get("phase")
    if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
        return 0  # it is not bound to a node, so nothing needs time to stop
    asked = options.grace_seconds
    default = spec.get("terminationGracePeriodSeconds", 30)
    return min(max(0, default if asked is None else asked), LONGEST_GRACE)


def may_go(value: Json) -> bool:
    """Whether nothing delays the removal of a terminating object any more."""
    metadata = value["metadata"]
    return (
        "deletionTimestamp" in metadata
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
        and value.get("kind") != "Namespace"
    )
