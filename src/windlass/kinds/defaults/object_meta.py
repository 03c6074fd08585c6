"""Rules for the metadata of every kind: names, labels, annotations, owners, finalizers.

The messages are those of Kubernetes, so that both engines report an error in the same way.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Final

from windlass.kinds.schema import field_errors
from windlass.kinds.schema.field_errors import Problem
from windlass.kinds.types.resource import Resource

Json = dict[str, Any]

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_NAME: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"

_LABEL_RE: Final = re.compile(_LABEL)
_SUBDOMAIN_RE: Final = re.compile(_SUBDOMAIN)
_NAME_RE: Final = re.compile(_NAME)

_LABEL_NAMES: Final = frozenset({"Namespace", "Service"})
_PATH_NAMES: Final = frozenset({"RoleBinding", "ClusterRoleBinding"})
_MAX_ANNOTATIONS: Final = 256 * 1024


def check(resource: Resource, value: Json) -> list[Problem]:
    """Problems of an object's metadata."""
    meta = value.get("metadata")
    if not isinstance(meta, dict):
        return [field_errors.required("metadata", "an object needs a name")]
    found: list[Problem] = []
    name = meta.get("name")
    if not name:
        found.append(field_errors.required("metadata.name", "name or generateName is required"))
    elif isinstance(name, str):
        found += name_problems(resource.kind, name, "metadata.name")
    prefix = meta.get("generateName")
    if isinstance(prefix, str) and prefix:
        # A letter stands for the generated suffix, so that a trailing '-' is valid.
        found += [
            dataclasses.replace(problem, value=prefix)
            for problem in name_problems(resource.kind, prefix[:58] + "x", "metadata.generateName")
        ]
    if resource.namespaced and meta.get("namespace"):
        found += _check_form(
            "metadata.namespace", meta["namespace"], _LABEL_RE, 63, _label_sentence()
        )
    if meta.get("labels"):
        found += label_problems(meta["labels"], "metadata.labels")
    if meta.get("annotations"):
        found += _annotation_problems(meta["annotations"])
    for index, finalizer in enumerate(_list(meta.get("finalizers"))):
        found += qualified_name_problems(finalizer, f"metadata.finalizers[{index}]")
    found += _owner_problems(_list(meta.get("ownerReferences")))
    return found


def name_problems(kind: str, name: str, path: str) -> list[Problem]:
    """Problems of the name of an object of this kind."""
    if kind in _PATH_NAMES:
        if name in (".", "..") or "/" in name or "%" in name:
            return [
                field_errors.invalid(path, name, "may not be '.' or '..' or contain '/' or '%'")
            ]
        return []
    if kind in _LABEL_NAMES:
        return _check_form(path, name, _LABEL_RE, 63, _label_sentence())
    return subdomain_problems(name, path)


def subdomain_problems(name: Any, path: str) -> list[Problem]:
    sentence = (
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' "
        "or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex "
        f"used for validation is '{_SUBDOMAIN}')"
    )
    return _check_form(path, name, _SUBDOMAIN_RE, 253, sentence)


def dns_label_problems(name: Any, path: str) -> list[Problem]:
    return _check_form(path, name, _LABEL_RE, 63, _label_sentence())


def label_problems(labels: Any, path: str) -> list[Problem]:
    """Problems of the keys and values of labels."""
    found: list[Problem] = []
    for key, value in labels.items() if isinstance(labels, dict) else ():
        found += qualified_name_problems(key, path)
        if isinstance(value, str) and (
            len(value) > 63 or (value and not _NAME_RE.fullmatch(value))
        ):
            sentence = (
                "a valid label must be an empty string or consist of alphanumeric characters, "
                "'-', '_' or '.', and must start and end with an alphanumeric character, at most "
                "63 in all (e.g. 'MyValue',  or 'my_value',  or '12345')"
            )
            found.append(field_errors.invalid(path, value, sentence))
    return found


def qualified_name_problems(name: Any, path: str) -> list[Problem]:
    """Problems of `name` or `prefix/name`: keys of labels and annotations, finalizers."""
    if not isinstance(name, str):
        return []
    prefix, slash, tail = name.rpartition("/")
    allowed = ""
    if slash and (not prefix or len(prefix) > 253 or not _SUBDOMAIN_RE.fullmatch(prefix)):
        allowed = (
            "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric "
            "characters, '-' or '.', and must start and end with an alphanumeric character"
        )
    elif len(tail) > 63:
        allowed = "name part must be no more than 63 bytes"
    elif not _NAME_RE.fullmatch(tail):
        allowed = (
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start "
            "and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc')"
        )
    return [field_errors.invalid(path, name, allowed)] if allowed else []


def _annotation_problems(annotations: Any) -> list[Problem]:
    if not isinstance(annotations, dict):
        return []
    found: list[Problem] = []
    size = 0
    for key, value in annotations.items():
        found += qualified_name_problems(key.lower(), "metadata.annotations")
        size += len(key) + (len(value.encode()) if isinstance(value, str) else 0)
    if size > _MAX_ANNOTATIONS:
        found.append(field_errors.too_long("metadata.annotations", "", _MAX_ANNOTATIONS))
    return found


def _owner_problems(owners: list[Any]) -> list[Problem]:
    found: list[Problem] = []
    controllers = 0
    for index, owner in enumerate(owners):
        if not isinstance(owner, dict):
            continue
        path = f"metadata.ownerReferences[{index}]"
        found += [
            field_errors.invalid(f"{path}.{field}", "", f"{field} must not be empty")
            for field in ("apiVersion", "kind", "name", "uid")
            if owner.get(field) == ""
        ]
        controllers += owner.get("controller") is True
    if controllers > 1:
        why = "Only one reference can have Controller set to true"
        found.append(field_errors.invalid("metadata.ownerReferences", len(owners), why))
    return found


def _check_form(
    path: str, name: Any, form: re.Pattern[str], limit: int, sentence: str
) -> list[Problem]:
    if not isinstance(name, str):
        return []
    if len(name) > limit:
        return [field_errors.invalid(path, name, f"must be no more than {limit} bytes")]
    return [] if form.fullmatch(name) else [field_errors.invalid(path, name, sentence)]


def _label_sentence() -> str:
    return (
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
        "and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', "
        f"regex used for validation is '{_LABEL}')"
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
