"""The OpenAPI v3 documents: one per group and version, with an index of them.

`kubectl explain`, kubectl's validation and fuzzers read these. Schemas come from
`kinds.schema_export`; paths, parameters and the Kubernetes extensions are added here. Built once,
on first use.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from windlass.kinds.types.resource import Resource
from windlass.server.apiserver import discovery
from windlass.store import errors
from windlass.version import VERSION

Json = dict[str, Any]
DescribePlatform = Callable[[str], tuple[Json, Json]]
"""From the name of the schema of a Status to the paths and schemas of the platform API."""

_STATUS = "io.k8s.apimachinery.pkg.apis.meta.v1.Status"
_DELETE_OPTIONS = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"
_LIST_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"
_JSON, _YAML = "application/json", "application/yaml"
_PATCH_TYPES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)


V2, _TITLE = "/openapi/v2", "Windlass"
_V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
_V2_CONTENT_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def version_2(accept: str | None) -> tuple[bytes, str]:
    """The document of OpenAPI v2, which describes nothing, and its content type.

    Kinds are described in v3. kubectl asks for v2 when v3 does not have a kind, and names that kind
    only after an answer. Fields 1 and 2 of the message are `swagger` and `info`, of which 1 and 2
    are `title` and `version`.
    """
    if _V2_PROTOBUF not in (accept or ""):
        info = {"title": _TITLE, "version": VERSION}
        return msgspec.json.encode({"swagger": "2.0", "info": info, "paths": {}}), _JSON
    info_bytes = _protobuf_text(1, _TITLE) + _protobuf_text(2, VERSION)
    return _protobuf_text(1, "2.0") + bytes((0x12, len(info_bytes))) + info_bytes, _V2_CONTENT_TYPE


def _protobuf_text(field: int, text: str) -> bytes:
    """A field with a string shorter than 128 bytes."""
    return bytes((field << 3 | 2, len(text.encode()))) + text.encode()


def document(path: str, platform: DescribePlatform, *, only: str = "") -> bytes:
    """The document at a path below /openapi. `only`: the one group that is served."""
    parts = path.split("/")[1:]
    if parts == ["openapi", "v2"]:
        raise errors.NotAcceptable("OpenAPI v2 is not served; read /openapi/v3")
    if parts == ["openapi", "v3"]:
        return _index(platform, only)
    found = None
    if parts[:3] == ["openapi", "v3", "api"] and len(parts) == 4:
        found = ("", parts[3])
    elif parts[:3] == ["openapi", "v3", "apis"] and len(parts) == 5:
        found = (parts[3], parts[4])
    served = found is not None and found[0] == (only or found[0])
    if found is None or not served or found[1] not in discovery.group_versions().get(found[0], ()):
        raise errors.NotFound("the server could not find the requested resource")
    return _document(*found, platform)


@functools.cache
def _index(platform: DescribePlatform, only: str) -> bytes:
    paths = {}
    for group, versions in discovery.group_versions().items():
        for version in versions if group == (only or group) else ():
            place = f"apis/{group}/{version}" if group else f"api/{version}"
            digest = hashlib.sha256(_document(group, version, platform)).hexdigest()[:32].upper()
            paths[place] = {"serverRelativeURL": f"/openapi/v3/{place}?hash={digest}"}
    return msgspec.json.encode({"paths": paths})


@functools.cache
def _document(group: str, version: str, platform: DescribePlatform) -> bytes:
    from windlass.kinds import schema_export  # late: only clients that read OpenAPI need it

    schemas: Json = dict(schema_export.openapi_schemas(group, version))
    for name, common in _COMMON_SCHEMAS.items():
        schemas.setdefault(name, common)
    paths: Json = {}
    for resource in discovery.resources_of(group, version):
        paths |= _resource_paths(resource, schemas)
    if (group, version) == discovery.PLATFORM:
        described, answers = platform(_STATUS)
        paths |= described
        schemas |= answers
    for review in discovery.reviews_of(group, version):
        paths[f"/apis/{group}/{version}/{review.plural}"] = _review_path(review)
    return msgspec.json.encode(
        {
            "openapi": "3.0.0",
            "info": {"title": _TITLE, "version": VERSION},
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {"BearerToken": {"type": "http", "scheme": "bearer"}},
            },
            "security": [{"BearerToken": []}],
        }
    )


# --- the paths of a resource --------------------------------------------------------------------


def _resource_paths(resource: Resource, schemas: Json) -> Json:
    name = _schema_name(resource, schemas)
    list_name = f"{name}List"
    schemas[list_name] = _list_schema(resource, name)
    namespace = "{namespace}" if resource.namespaced else ""
    collection = resource.path(namespace)
    single = resource.path(namespace, "{name}")
    paths = {
        collection: _collection(resource, name, list_name),
        single: _single(resource, name, ""),
    }
    if resource.namespaced:
        everywhere = _Operations(resource, name, namespaced=False)
        paths[resource.path()] = {"get": everywhere.list(list_name)}
    for subresource in resource.subresources:
        path = resource.path(namespace, "{name}", subresource)
        paths[path] = _subresource(resource, name, subresource)
    return paths


def _collection(resource: Resource, name: str, list_name: str) -> Json:
    operations = _Operations(resource, name)
    return {
        "get": operations.list(list_name),
        "post": operations.write("post", "create", name, 201),
        "delete": operations.delete("deletecollection", (*_LIST_PARAMETERS, *_DELETE_PARAMETERS)),
    }


def _single(resource: Resource, name: str, subresource: str) -> Json:
    operations = _Operations(resource, name, subresource=subresource)
    found = {
        "get": operations.read(),
        "put": operations.write("put", "update", name, 200),
        "patch": operations.patch(),
    }
    if not subresource:
        found["delete"] = operations.delete("delete", _DELETE_PARAMETERS)
    return {**found, "parameters": [_path_parameter("name")]}


def _subresource(resource: Resource, name: str, subresource: str) -> Json:
    if subresource == "status":
        return _single(resource, name, subresource)
    operations = _Operations(resource, name, subresource=subresource)
    parameters = {"parameters": [_path_parameter("name")]}
    if subresource == "log":
        return {"get": operations.connect("get", _LOG_PARAMETERS), **parameters}
    if subresource in ("binding", "eviction", "token"):
        return {"post": operations.write("post", "create", _STATUS, 201, free=True), **parameters}
    return {
        method: operations.connect(method, _STREAM_PARAMETERS) for method in ("get", "post")
    } | parameters


class _Operations:
    """The operations of one path, with their common parts."""

    def __init__(
        self,
        resource: Resource,
        name: str,
        *,
        subresource: str = "",
        namespaced: bool | None = None,
    ) -> None:
        self._resource = resource
        self._name = name
        self._subresource = subresource
        self._namespaced = resource.namespaced if namespaced is None else namespaced

    def list(self, list_name: str) -> Json:
        return self._operation("get", "list", list_name, (*_LIST_PARAMETERS, *_WATCH_PARAMETERS))

    def read(self) -> Json:
        return self._operation("get", "get", self._name, ())

    def write(
        self, method: str, action: str, answer: str, code: int, *, free: bool = False
    ) -> Json:
        found = self._operation(method, action, answer, _WRITE_PARAMETERS, code)
        body = {"type": "object"} if free else _ref(self._name)
        found["requestBody"] = {
            "required": True,
            "content": {kind: {"schema": body} for kind in (_JSON, _YAML)},
        }
        return found

    def patch(self) -> Json:
        found = self._operation("patch", "patch", self._name, _WRITE_PARAMETERS)
        own = self._resource.group.endswith("windlass.dev")
        content = {}
        for kind in _PATCH_TYPES[:2] if own else _PATCH_TYPES:
            is_json_patch = kind == _PATCH_TYPES[0]
            content[kind] = {"schema": _JSON_PATCH if is_json_patch else {"type": "object"}}
        found["requestBody"] = {"required": True, "content": content}
        return found

    def delete(self, action: str, parameters: tuple[Json, ...]) -> Json:
        found = self._operation("delete", action, _STATUS, parameters)
        found["requestBody"] = {"content": {_JSON: {"schema": _ref(_DELETE_OPTIONS)}}}
        found["responses"]["200"]["content"][_JSON]["schema"] = {"type": "object"}
        return found

    def connect(self, method: str, parameters: tuple[Json, ...]) -> Json:
        found = self._operation(method, "connect", _STATUS, parameters)
        found["responses"] = {
            "101": {"description": "The session, over WebSocket."},
            "200": {"description": "The log.", "content": {"text/plain": {"schema": _TEXT}}},
            **_FAILURES,
        }
        return found

    def _operation(
        self, method: str, action: str, answer: str, parameters: tuple[Json, ...], code: int = 200
    ) -> Json:
        resource = self._resource
        scope = "Namespaced" if self._namespaced else ""
        sub = self._subresource.capitalize()
        all_parameters = list(parameters)
        if self._namespaced:
            all_parameters.append(_path_parameter("namespace"))
        return {
            "operationId": f"{action}{scope}{resource.kind}{sub}{method.capitalize()}",
            "tags": [resource.group or "core"],
            "parameters": all_parameters,
            "responses": {
                str(code): {
                    "description": "OK",
                    "content": {_JSON: {"schema": _ref(answer)}},
                },
                **_FAILURES,
            },
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": _gvk(
                resource.group, resource.version, resource.kind
            ),
        }


def _review_path(review: discovery.Review) -> Json:
    return {
        "post": {
            "operationId": f"create{review.kind}",
            "tags": [review.group],
            "parameters": list(_WRITE_PARAMETERS),
            "requestBody": {"required": True, "content": {_JSON: {"schema": {"type": "object"}}}},
            "responses": {
                "201": {"description": "OK", "content": {_JSON: {"schema": {"type": "object"}}}},
                **_FAILURES,
            },
            "x-kubernetes-action": "post",
            "x-kubernetes-group-version-kind": _gvk(review.group, review.version, review.kind),
        }
    }


def _schema_name(resource: Resource, schemas: Json) -> str:
    wanted = _gvk(resource.group, resource.version, resource.kind)
    for name, found in schemas.items():
        if wanted in found.get("x-kubernetes-group-version-kind", ()):
            return name
    raise LookupError(f"kinds.schema has no schema of {resource.key}")


def _list_schema(resource: Resource, name: str) -> Json:
    gvk = _gvk(resource.group, resource.version, f"{resource.kind}List")
    return {
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": _TEXT,
            "kind": _TEXT,
            "metadata": _ref(_LIST_META),
            "items": {"type": "array", "items": _ref(name)},
        },
        "x-kubernetes-group-version-kind": [gvk],
    }


# --- parts --------------------------------------------------------------------------------------


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _gvk(group: str, version: str, kind: str) -> Json:
    return {"group": group, "version": version, "kind": kind}


def _query(name: str, kind: str, description: str) -> Json:
    return {"name": name, "in": "query", "description": description, "schema": {"type": kind}}


def _path_parameter(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": _TEXT}


_TEXT: Json = {"type": "string"}
_JSON_PATCH: Json = {"type": "array", "items": {"type": "object"}}
_FAILURES: Json = {
    "default": {"description": "Why not.", "content": {_JSON: {"schema": _ref(_STATUS)}}}
}
_LIST_PARAMETERS = (
    _query("labelSelector", "string", "Only objects whose labels match."),
    _query("fieldSelector", "string", "Only objects whose fields match."),
    _query("limit", "integer", "At most this many; `continue` reads on."),
    _query("continue", "string", "From the page before."),
    _query("resourceVersion", "string", "The version to read or watch from."),
    _query("resourceVersionMatch", "string", "Exact or NotOlderThan."),
)
_WATCH_PARAMETERS = (
    _query("watch", "boolean", "Stream changes instead of listing."),
    _query("allowWatchBookmarks", "boolean", "Send the version from time to time."),
    _query("sendInitialEvents", "boolean", "Begin with what there is."),
    _query("timeoutSeconds", "integer", "End the watch after this long."),
)
_WRITE_PARAMETERS = (
    _query("dryRun", "string", "All: do everything but keep it."),
    _query("fieldManager", "string", "The name of the writer; accepted and not recorded."),
    _query("fieldValidation", "string", "Strict, Warn or Ignore fields that are unknown."),
)
_DELETE_PARAMETERS = (
    _query("dryRun", "string", "All: do everything but keep it."),
    _query("gracePeriodSeconds", "integer", "Time to end in order."),
    _query("propagationPolicy", "string", "Background, Foreground or Orphan."),
)
_LOG_PARAMETERS = (
    _query("container", "string", "Which container."),
    _query("follow", "boolean", "Go on until it ends."),
    _query("tailLines", "integer", "Only the last lines."),
    _query("limitBytes", "integer", "Only the first bytes."),
    _query("sinceSeconds", "integer", "Only what is younger."),
    _query("timestamps", "boolean", "A time before each line."),
)
_STREAM_PARAMETERS = (
    _query("container", "string", "Which container."),
    _query("command", "string", "The command and, repeated, its arguments."),
    _query("stdin", "boolean", "Carry standard input."),
    _query("stdout", "boolean", "Carry standard output."),
    _query("stderr", "boolean", "Carry standard error."),
    _query("tty", "boolean", "On a terminal."),
)
_COMMON_SCHEMAS: Json = {
    _STATUS: {
        "type": "object",
        "description": "The outcome of a request that does not answer with an object.",
        "properties": {
            "apiVersion": _TEXT, "kind": _TEXT, "metadata": _ref(_LIST_META), "status": _TEXT,
            "message": _TEXT, "reason": _TEXT, "code": {"type": "integer"},
            "details": {"type": "object"},
        },
    },
    _LIST_META: {
        "type": "object",
        "properties": {
            "resourceVersion": _TEXT, "continue": _TEXT, "selfLink": _TEXT,
            "remainingItemCount": {"type": "integer"},
        },
    },
    _DELETE_OPTIONS: {
        "type": "object",
        "properties": {
            "apiVersion": _TEXT, "kind": _TEXT,
            "gracePeriodSeconds": {"type": "integer", "minimum": 0},
            "propagationPolicy": {"type": "string", "enum": ["Background", "Foreground", "Orphan"]},
            "dryRun": {"type": "array", "items": {"type": "string", "enum": ["All"]}},
            "preconditions": {
                "type": "object", "properties": {"uid": _TEXT, "resourceVersion": _TEXT},
            },
        },
    },
}  # fmt: skip
