"""Defaults and rules of Pods, for the embedded server, as in kube-apiserver.

Called by `kinds.defaults.core`. The agent, not this module, rejects pods that it cannot run.
"""

from __future__ import annotations

import re
from typing import Any, Final

from windlass.kinds.defaults import object_meta
from windlass.kinds.schema import field_errors
from windlass.kinds.schema.field_errors import Problem
from windlass.kinds.values import quantity

Json = dict[str, Any]

_RESTART: Final = ("Always", "OnFailure", "Never")
_PULL: Final = ("Always", "IfNotPresent", "Never")
_PROTOCOLS: Final = ("TCP", "UDP", "SCTP")
_ENV_NAME: Final = re.compile("[ -<>-~]+")
_UPDATE: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set "
    "to 1 if it was previously negative)"
)


def present(value: Json) -> Json:
    """The value without nulls and empty strings: both mean absent in Kubernetes."""
    return {key: inner for key, inner in value.items() if inner is not None and inner != ""}


def defaulted(pod: Json) -> Json:
    """The pod with Kubernetes' defaults."""
    filled = dict(pod)
    spec = pod.get("spec")
    if isinstance(spec, dict):
        filled["spec"] = _default_spec(spec)
    status = pod.get("status")
    if status is None or isinstance(status, dict):
        filled["status"] = {"phase": "Pending", "qosClass": _qos(spec), **(status or {})}
    return filled


def check(pod: Json) -> list[Problem]:
    """The problems that Kubernetes reports for a pod whose types are valid."""
    return _spec_problems(pod.get("spec") or {})


def check_change(pod: Json, old: Json) -> list[Problem]:
    """The problems that Kubernetes reports for a change to a pod."""
    return _update_problems(pod.get("spec") or {}, old.get("spec") or {})


def port_problems(port: Any, path: str) -> list[Problem]:
    if not isinstance(port, int) or not 1 <= port <= 65535:
        return [field_errors.invalid(path, port, "must be between 1 and 65535, inclusive")]
    return []


def quantity_problems(amounts: Json, path: str) -> list[Problem]:
    """Problems of a map of resource names to quantities."""
    found = []
    for name, amount in amounts.items():
        if not quantity.is_valid(amount, signed=True):
            allowed = "must be a quantity such as 8, 500m or 32Gi"
            found.append(field_errors.invalid(f"{path}[{name}]", amount, allowed))
        elif quantity.nano(amount, signed=True) < 0:
            found.append(
                field_errors.invalid(
                    f"{path}[{name}]", amount, "must be greater than or equal to 0"
                )
            )
    return found


# --- defaults


def _default_spec(spec: Json) -> Json:
    filled = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "enableServiceLinks": True,
        **present(spec),
    }
    for field in ("containers", "initContainers"):
        if isinstance(spec.get(field), list):
            filled[field] = [_default_container(container) for container in spec[field]]
    return filled


def _default_container(container: Any) -> Any:
    if not isinstance(container, dict):
        return container
    filled = {
        "imagePullPolicy": _pull_policy(container.get("image")),
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "resources": {},
        **present(container),
    }
    if isinstance(container.get("ports"), list):
        filled["ports"] = [
            {"protocol": "TCP", **present(port)} if isinstance(port, dict) else port
            for port in container["ports"]
        ]
    limits, requests = _amounts(filled)
    if limits:
        filled["resources"] = {**filled["resources"], "requests": requests}
    return filled


def _amounts(container: Json) -> tuple[Json, Json]:
    """A container's limits and requests; a limit without a request is the request, too."""
    resources = container.get("resources")
    if not isinstance(resources, dict):
        return {}, {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    if not isinstance(limits, dict) or not isinstance(requests, dict):
        return {}, {}
    return limits, {**limits, **requests}


def _pull_policy(image: Any) -> str:
    name = str(image or "").rpartition("/")[2]
    tag = name.partition(":")[2]
    return "Always" if "@" not in name and tag in ("", "latest") else "IfNotPresent"


def _qos(spec: Any) -> str:
    """The QoS class: which pods a node evicts first when memory runs short."""
    containers = spec.get("containers") if isinstance(spec, dict) else None
    listed = containers if isinstance(containers, list) else []
    amounts = [_amounts(container) for container in listed if isinstance(container, dict)]
    if not any(limits or requests for limits, requests in amounts):
        return "BestEffort"
    guaranteed = all(
        limits == requests and {"cpu", "memory"} <= limits.keys() for limits, requests in amounts
    )
    return "Guaranteed" if guaranteed else "Burstable"


# --- rules


def _spec_problems(spec: Json) -> list[Problem]:
    found: list[Problem] = []
    containers = spec.get("containers") or []
    if not containers:
        found.append(field_errors.required("spec.containers"))
    names: set[str] = set()
    volumes = {str(volume.get("name")) for volume in spec.get("volumes") or ()}
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or ()):
            found += _container_problems(container, f"spec.{field}[{index}]", names, volumes)
    if spec.get("restartPolicy") not in (None, *_RESTART):
        found.append(
            field_errors.unsupported("spec.restartPolicy", spec["restartPolicy"], _RESTART)
        )
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= 2**31 - 1:
        why = "must be between 1 and 2147483647, inclusive"
        found.append(field_errors.invalid("spec.activeDeadlineSeconds", deadline, why))
    found += object_meta.label_problems(spec.get("nodeSelector") or {}, "spec.nodeSelector")
    found += _volume_problems(spec.get("volumes") or [])
    for field in ("hostname", "subdomain"):
        if spec.get(field):
            found += object_meta.dns_label_problems(spec[field], f"spec.{field}")
    if spec.get("nodeName"):
        found += object_meta.subdomain_problems(spec["nodeName"], "spec.nodeName")
    return found


def _container_problems(
    container: Json, path: str, names: set[str], volumes: set[str]
) -> list[Problem]:
    found: list[Problem] = []
    name = container.get("name")
    if not name:
        found.append(field_errors.required(f"{path}.name"))
    elif name in names:
        found.append(field_errors.duplicate(f"{path}.name", name))
    else:
        names.add(name)
        found += object_meta.dns_label_problems(name, f"{path}.name")
    if not container.get("image"):
        found.append(field_errors.required(f"{path}.image"))
    if container.get("imagePullPolicy") not in (None, *_PULL):
        where = f"{path}.imagePullPolicy"
        found.append(field_errors.unsupported(where, container["imagePullPolicy"], _PULL))
    for index, port in enumerate(container.get("ports") or ()):
        found += port_problems(port.get("containerPort"), f"{path}.ports[{index}].containerPort")
        if port.get("protocol") not in (None, *_PROTOCOLS):
            where = f"{path}.ports[{index}].protocol"
            found.append(field_errors.unsupported(where, port["protocol"], _PROTOCOLS))
    for index, variable in enumerate(container.get("env") or ()):
        found += _env_problems(variable, f"{path}.env[{index}]")
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        if mount.get("name") not in volumes:
            where = f"{path}.volumeMounts[{index}].name"
            message = f'Not found: "{mount.get("name")}"'
            found.append(Problem(where, mount.get("name"), message, "FieldValueNotFound"))
        if not mount.get("mountPath"):
            found.append(field_errors.required(f"{path}.volumeMounts[{index}].mountPath"))
    return found + _resource_problems(container.get("resources") or {}, f"{path}.resources")


def _env_problems(variable: Json, path: str) -> list[Problem]:
    name = variable.get("name")
    if not name:
        return [field_errors.required(f"{path}.name")]
    if not _ENV_NAME.fullmatch(name):
        allowed = "a valid environment variable name must consist of printable ASCII but '='"
        return [field_errors.invalid(f"{path}.name", name, allowed)]
    if variable.get("value") and variable.get("valueFrom"):
        why = "may not be specified when `value` is not empty"
        return [field_errors.invalid(f"{path}.valueFrom", "", why)]
    return []


def _resource_problems(resources: Json, path: str) -> list[Problem]:
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    found = quantity_problems(requests, f"{path}.requests")
    found += quantity_problems(limits, f"{path}.limits")
    for name in requests.keys() & limits.keys() if not found else ():
        if quantity.nano(requests[name]) > quantity.nano(limits[name]):
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            found.append(field_errors.invalid(f"{path}.requests", str(requests[name]), why))
    return found


def _volume_problems(volumes: list[Json]) -> list[Problem]:
    found: list[Problem] = []
    names: set[str] = set()
    for index, volume in enumerate(volumes):
        path, name = f"spec.volumes[{index}].name", volume.get("name")
        if not name:
            found.append(field_errors.required(path))
        elif not isinstance(name, str):
            found.append(field_errors.wrong_type(path, name, "must be a string"))
        elif name in names:
            found.append(field_errors.duplicate(path, name))
        else:
            found += object_meta.dns_label_problems(name, path)
            names.add(name)
    return found


def _update_problems(new: Json, old: Json) -> list[Problem]:
    for field in ("containers", "initContainers"):
        before, after = len(old.get(field) or ()), len(new.get(field) or ())
        if before != after:
            why = "pod updates may not add or remove containers"
            return [field_errors.forbidden(f"spec.{field}", why)]
    tolerated = new.get("tolerations") or []
    if any(toleration not in tolerated for toleration in old.get("tolerations") or ()):
        why = "existing toleration can not be modified except its tolerationSeconds"
        return [field_errors.forbidden("spec.tolerations", why)]
    limit, deadline = old.get("activeDeadlineSeconds"), new.get("activeDeadlineSeconds")
    if limit is not None and (deadline is None or deadline > limit):
        why = "must be less than or equal to previous value"
        return [field_errors.invalid("spec.activeDeadlineSeconds", deadline, why)]
    if _fixed_part(new, old) != _fixed_part(old, old):
        return [field_errors.forbidden("spec", _UPDATE)]
    return []


def _fixed_part(spec: Json, old: Json) -> Json:
    """A pod's spec without its mutable fields."""
    free = {"tolerations", "activeDeadlineSeconds"}
    if (old.get("terminationGracePeriodSeconds") or 0) < 0:
        free.add("terminationGracePeriodSeconds")
    fixed = {k: v for k, v in present(spec).items() if k not in free and v not in ([], {})}
    for field in ("containers", "initContainers"):
        if field in fixed:
            fixed[field] = [{**container, "image": ""} for container in fixed[field]]
    return fixed
