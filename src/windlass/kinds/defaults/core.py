"""Defaults and rules of Kubernetes' own kinds, for the embedded server.

The part of kube-apiserver's behaviour that users of kubectl notice: its defaults, its validation
and its messages. On a cluster the API server does this itself. Pods have a module of their own,
`kinds.defaults.pods`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from typing import Any, Final

from windlass.kinds.defaults import object_meta, pods
from windlass.kinds.schema import field_errors, structural
from windlass.kinds.schema.field_errors import Problem
from windlass.kinds.types import core
from windlass.kinds.types.meta import Object

Json = dict[str, Any]
Check = Callable[[Json], list[Problem]]
Compare = Callable[[Json, Json], list[Problem]]
Fill = Callable[[Json], Json]

_DATA_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_MAX_DATA: Final = 1024 * 1024
_MAX_USER_PRIORITY: Final = 1_000_000_000


def defaulted(kind: type[Object], value: Json) -> Json:
    """The object with Kubernetes' defaults."""
    fill = _FILL.get(kind)
    return fill(value) if fill else value


def check(kind: type[Object], value: Json, old: Json | None) -> list[Problem]:
    """The problems that Kubernetes reports for an object whose types are valid."""
    rule, change = _CHECK.get(kind), _CHANGE.get(kind)
    found = rule(value) if rule else []
    return found + change(value, old) if change and old is not None else found


# --- defaults


def _fill_secret(value: Json) -> Json:
    filled = {**value, "type": value.get("type") or "Opaque"}
    plain, data = value.get("stringData"), value.get("data") or {}
    if isinstance(plain, dict) and isinstance(data, dict):
        del filled["stringData"]
        folded = {
            key: base64.b64encode(text.encode()).decode() if isinstance(text, str) else text
            for key, text in plain.items()
        }
        filled["data"] = {**data, **folded}
    return filled


def _fill_namespace(value: Json) -> Json:
    status = value.get("status") or {}
    if not isinstance(status, dict):
        return value
    return {**value, "status": {**status, "phase": status.get("phase") or "Active"}}


def _fill_service(value: Json) -> Json:
    spec = value.get("spec")
    if not isinstance(spec, dict):
        return value
    filled = {"type": "ClusterIP", "sessionAffinity": "None", **pods.present(spec)}
    if isinstance(spec.get("ports"), list):
        filled["ports"] = [_fill_service_port(port) for port in spec["ports"]]
    return {**value, "spec": filled}


def _fill_service_port(port: Any) -> Any:
    if not isinstance(port, dict) or "port" not in port:
        return port
    return {"protocol": "TCP", "targetPort": port["port"], **pods.present(port)}


def _fill_priority_class(value: Json) -> Json:
    return {"preemptionPolicy": "PreemptLowerPriority", "value": 0, **pods.present(value)}


def _fill_binding(value: Json) -> Json:
    filled = dict(value)
    role = value.get("roleRef")
    if isinstance(role, dict):
        filled["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", **pods.present(role)}
    if isinstance(value.get("subjects"), list):
        filled["subjects"] = [_fill_subject(subject) for subject in value["subjects"]]
    return filled


def _fill_subject(subject: Any) -> Any:
    if not isinstance(subject, dict) or subject.get("kind") not in ("User", "Group"):
        return subject
    return {"apiGroup": "rbac.authorization.k8s.io", **pods.present(subject)}


# --- rules of an object, then of a change to it


def _check_secret(value: Json) -> list[Problem]:
    return _data_keys(value, "data") + _base64_values(value, "data") + _data_size(value)


def _check_config_map(value: Json) -> list[Problem]:
    found = _data_keys(value, "data") + _data_keys(value, "binaryData")
    found += _base64_values(value, "binaryData") + _data_size(value)
    for key in sorted((value.get("data") or {}).keys() & (value.get("binaryData") or {}).keys()):
        why = "duplicate of key present in binaryData"
        found.append(field_errors.invalid(f"data[{key}]", key, why))
    return found


def _check_service(value: Json) -> list[Problem]:
    spec = value.get("spec") or {}
    found: list[Problem] = []
    kinds = ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
    if spec.get("type") and spec["type"] not in kinds:
        found.append(field_errors.unsupported("spec.type", spec["type"], kinds))
    headless = spec.get("clusterIP") == "None" or spec.get("type") == "ExternalName"
    if not spec.get("ports") and not headless:
        found.append(field_errors.required("spec.ports"))
    for index, port in enumerate(spec.get("ports") or ()):
        found += pods.port_problems(port.get("port"), f"spec.ports[{index}].port")
        if len(spec["ports"]) > 1 and not port.get("name"):
            found.append(field_errors.required(f"spec.ports[{index}].name"))
    return found + object_meta.label_problems(spec.get("selector") or {}, "spec.selector")


def _check_node(value: Json) -> list[Problem]:
    found: list[Problem] = []
    spec, status = value.get("spec") or {}, value.get("status") or {}
    effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
    for index, taint in enumerate(spec.get("taints") or ()):
        path = f"spec.taints[{index}]"
        found += object_meta.qualified_name_problems(taint.get("key"), f"{path}.key")
        if taint.get("effect") not in effects:
            found.append(field_errors.unsupported(f"{path}.effect", taint.get("effect"), effects))
    for field in ("capacity", "allocatable"):
        found += pods.quantity_problems(status.get(field) or {}, f"status.{field}")
    return found


def _check_lease(value: Json) -> list[Problem]:
    spec = value.get("spec") or {}
    found: list[Problem] = []
    seconds = spec.get("leaseDurationSeconds")
    if seconds is not None and seconds <= 0:
        found.append(
            field_errors.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0")
        )
    changes = spec.get("leaseTransitions")
    if changes is not None and changes < 0:
        found.append(
            field_errors.invalid(
                "spec.leaseTransitions", changes, "must be greater than or equal to 0"
            )
        )
    for field in ("acquireTime", "renewTime"):
        if spec.get(field) is not None and not structural.is_time(spec[field]):
            allowed = "must be a time such as 2026-01-01T10:20:00.000000Z"
            found.append(field_errors.invalid(f"spec.{field}", spec[field], allowed))
    return found


def _check_priority_class(value: Json) -> list[Problem]:
    found: list[Problem] = []
    amount = value.get("value") or 0
    if amount > _MAX_USER_PRIORITY and not value["metadata"].get("name", "").startswith("system-"):
        why = f"maximum allowed value of a user defined priority is {_MAX_USER_PRIORITY}"
        found.append(field_errors.forbidden("value", why))
    policies = ("PreemptLowerPriority", "Never")
    if value.get("preemptionPolicy") not in (None, *policies):
        found.append(
            field_errors.unsupported("preemptionPolicy", value["preemptionPolicy"], policies)
        )
    return found


def _check_binding(value: Json) -> list[Problem]:
    found: list[Problem] = []
    role = value.get("roleRef") or {}
    if role.get("kind") not in ("Role", "ClusterRole"):
        found.append(
            field_errors.unsupported("roleRef.kind", role.get("kind"), ("Role", "ClusterRole"))
        )
    if not role.get("name"):
        found.append(field_errors.required("roleRef.name"))
    kinds = ("User", "Group", "ServiceAccount")
    for index, subject in enumerate(value.get("subjects") or ()):
        if subject.get("kind") not in kinds:
            path = f"subjects[{index}].kind"
            found.append(field_errors.unsupported(path, subject.get("kind"), kinds))
    return found


def _check_event(value: Json) -> list[Problem]:
    involved = (value.get("involvedObject") or {}).get("namespace") or "default"
    namespace = value["metadata"].get("namespace")
    if namespace and involved != namespace:
        why = "does not match event.namespace"
        return [field_errors.invalid("involvedObject.namespace", involved, why)]
    return []


def _change_secret(value: Json, old: Json) -> list[Problem]:
    found = _frozen(value, old, ("data",))
    if value.get("type") != old.get("type"):
        found.append(field_errors.invalid("type", value.get("type"), "field is immutable"))
    return found


def _change_config_map(value: Json, old: Json) -> list[Problem]:
    return _frozen(value, old, ("data", "binaryData"))


def _change_priority_class(value: Json, old: Json) -> list[Problem]:
    return [
        field_errors.forbidden(field, "may not be changed in an update.")
        for field in ("value", "preemptionPolicy")
        if value.get(field) != old.get(field)
    ]


def _change_binding(value: Json, old: Json) -> list[Problem]:
    if value.get("roleRef") == old.get("roleRef"):
        return []
    return [field_errors.invalid("roleRef", value.get("roleRef"), "cannot change roleRef")]


def _data_keys(value: Json, field: str) -> list[Problem]:
    allowed = (
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
        "'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is "
        "'[-._a-zA-Z0-9]+')"
    )
    return [
        field_errors.invalid(f"{field}[{key}]", key, allowed)
        for key in value.get(field) or {}
        if not _DATA_KEY.fullmatch(key) or key in (".", "..")
    ]


def _base64_values(value: Json, field: str) -> list[Problem]:
    found = []
    for key, text in (value.get(field) or {}).items():
        try:
            base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            allowed = "must be base64; use stringData for plain text"
            found.append(field_errors.invalid(f"{field}[{key}]", "", allowed))
    return found


def _data_size(value: Json) -> list[Problem]:
    plain, encoded = value.get("data") or {}, value.get("binaryData") or {}
    size = sum(len(text.encode()) for text in plain.values())
    size += sum(len(text) * 3 // 4 for text in encoded.values())
    if size > _MAX_DATA:
        return [field_errors.too_long("data", "", _MAX_DATA)]
    return []


def _frozen(value: Json, old: Json, fields: tuple[str, ...]) -> list[Problem]:
    if not old.get("immutable"):
        return []
    why = "field is immutable when `immutable` is set"
    found = [
        field_errors.forbidden(field, why)
        for field in fields
        if (value.get(field) or {}) != (old.get(field) or {})
    ]
    if not value.get("immutable"):
        found.append(field_errors.forbidden("immutable", why))
    return found


_FILL: Final[dict[type[Object], Fill]] = {
    core.Pod: pods.defaulted,
    core.Secret: _fill_secret,
    core.Namespace: _fill_namespace,
    core.Service: _fill_service,
    core.PriorityClass: _fill_priority_class,
    core.RoleBinding: _fill_binding,
    core.ClusterRoleBinding: _fill_binding,
}
_CHECK: Final[dict[type[Object], Check]] = {
    core.Pod: pods.check,
    core.Secret: _check_secret,
    core.ConfigMap: _check_config_map,
    core.Service: _check_service,
    core.Node: _check_node,
    core.Lease: _check_lease,
    core.PriorityClass: _check_priority_class,
    core.RoleBinding: _check_binding,
    core.ClusterRoleBinding: _check_binding,
    core.Event: _check_event,
}
_CHANGE: Final[dict[type[Object], Compare]] = {
    core.Pod: pods.check_change,
    core.Secret: _change_secret,
    core.ConfigMap: _change_config_map,
    core.PriorityClass: _change_priority_class,
    core.RoleBinding: _change_binding,
    core.ClusterRoleBinding: _change_binding,
}
