"""Exports schemas: CRDs for a cluster, JSON Schema for editors, OpenAPI for kubectl.

All are written from the same tree (`kinds.schema.type_tree`) and rules (`kinds.schema.cel_rules`)
that the embedded server validates by. `tools/generate.py` writes CRDs and editor schemas to files;
the embedded server builds its OpenAPI documents from `openapi_schemas`.
"""

from __future__ import annotations

from typing import Any, Final

from windlass.kinds import merge_keys, registry, validate
from windlass.kinds.schema import cel_rules, docstrings, type_tree
from windlass.kinds.schema.type_tree import NOTHING, Node, StructClass
from windlass.kinds.types import meta
from windlass.kinds.types.meta import Object

Json = dict[str, Any]

META_PREFIX: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
_API_VERSION: Final = (
    "The version of the schema of this object; see "
    "https://kubernetes.io/docs/reference/using-api/api-concepts/"
)
_KIND: Final = "What kind of object this is."
_METADATA: Final = "Standard object metadata: name, labels, annotations."


# --- CRDs ---------------------------------------------------------------------------------------


def crd(kind: type[Object]) -> Json:
    """The CustomResourceDefinition of one of Windlass' own kinds."""
    resource = kind.resource
    columns = [
        {"name": column.name, "type": column.type, "jsonPath": column.json_path}
        | ({"priority": column.priority} if column.priority else {})
        | ({"description": column.description} if column.description else {})
        for column in resource.columns
    ]
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "subresources": {name: {} for name in resource.subresources},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": structural(kind)},
    }
    names = {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.singular,
        "shortNames": list(resource.short_names),
        "categories": list(resource.categories),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": resource.key},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": names,
            "versions": [version],
        },
    }


def structural(kind: type[Object]) -> Json:
    """The structural schema of a kind: no references, only what a CRD may contain."""
    root = _structural(type_tree.of_kind(kind))
    root["properties"] = {
        "apiVersion": {"type": "string", "description": _API_VERSION},
        "kind": {"type": "string", "description": _KIND},
        **root["properties"],
        "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
    }
    return root


def _structural(node: Node) -> Json:
    schema = _basics(node)
    if node.type == "object":
        schema |= _object(node, _structural)
    elif node.type == "any":
        schema["x-kubernetes-preserve-unknown-fields"] = True
    if node.items is not None:
        inner = "items" if node.type == "array" else "additionalProperties"
        schema[inner] = _structural(node.items)
    if node.list_key:
        schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [node.list_key]}
    found = _validations(node)
    return schema | ({"x-kubernetes-validations": found} if found else {})


def _validations(node: Node) -> list[Json]:
    found = [
        _validation(rule.cel, rule.message, rule.path)
        for rule in cel_rules.RULES
        if rule.struct is node.struct and rule.cel
    ]
    if node.keys is not None and node.keys.pattern:
        cel = f"self.all(k, size(k) <= {node.keys.max_size} && k.matches('{node.keys.pattern}'))"
        found.append(_validation(cel, f"each name must {node.keys.must}", ""))
    return found


def _validation(cel: str, message: str, path: str) -> Json:
    return {"rule": cel, "message": message} | ({"fieldPath": f".{path}"} if path else {})


# --- JSON Schema for editors --------------------------------------------------------------------


def editor(kind: type[Object]) -> Json:
    """JSON Schema (draft 7) of one of Windlass' own kinds; unknown fields are errors."""
    resource = kind.resource
    node = type_tree.of_kind(kind)
    schema = _editor(node)
    schema["required"] = ["apiVersion", "kind", "metadata", *schema.get("required", [])]
    schema["properties"] = {
        "apiVersion": {"const": resource.api_version, "description": _API_VERSION},
        "kind": {"const": resource.kind, "description": _KIND},
        **schema["properties"],
    }
    head = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": f"https://{resource.group}/schemas/{resource.version}/{resource.singular}.json",
        "title": resource.kind,
    }
    return head | schema


def _editor(node: Node) -> Json:
    schema = _basics(node)
    if schema.pop("x-kubernetes-int-or-string", False):
        schema.pop("anyOf")
        schema["type"] = ["integer", "string"]
    if node.type == "object":
        schema |= _object(node, _editor) | {"additionalProperties": False}
    if node.items is not None:
        inner = "items" if node.type == "array" else "additionalProperties"
        schema[inner] = _editor(node.items)
    if node.keys is not None and node.keys.pattern:
        schema["propertyNames"] = {"pattern": node.keys.pattern}
    return schema


# --- OpenAPI v3 ---------------------------------------------------------------------------------


def openapi_schemas(group: str, version: str) -> Json:
    """Component schemas of every kind of a group and version, and of their parts, by name."""
    components: Json = {}
    for kind in registry.ALL:
        resource = kind.resource
        if (resource.group, resource.version) == (group, version):
            _add_component(type_tree.of_kind(kind), kind, components)
            root = components[_component_name(kind, kind)]
            root["properties"] = {
                "apiVersion": {"type": "string", "description": _API_VERSION},
                "kind": {"type": "string", "description": _KIND},
                **root["properties"],
            }
            gvk = {"group": group, "version": version, "kind": resource.kind}
            root["x-kubernetes-group-version-kind"] = [gvk]
    return components


def _add_component(node: Node, kind: type[Object], components: Json) -> None:
    if node.struct is None:
        return
    name = _component_name(node.struct, kind)
    if name in components:
        return
    components[name] = {}
    schema = _basics(node) | _object(node, lambda inner: _openapi(inner, kind, components))
    for field_name, field in node.fields.items():
        if not validate.is_own(kind) or node.struct is meta.ObjectMeta:
            schema["properties"][field_name] |= _merging(kind.resource.kind, field_name, field.node)
    if not validate.is_own(kind):
        schema["x-kubernetes-preserve-unknown-fields"] = True
    components[name] = schema


def _openapi(node: Node, kind: type[Object], components: Json) -> Json:
    if node.struct is not None:
        _add_component(node, kind, components)
        reference = f"#/components/schemas/{_component_name(node.struct, kind)}"
        return {"allOf": [{"$ref": reference}]}
    schema = _basics(node)
    if node.format == "quantity":
        # Kubernetes' own amounts may also be plain numbers.
        schema["anyOf"] = [{"type": "integer"}, {"type": "number"}, {"type": "string"}]
    if node.items is not None:
        inner = "items" if node.type == "array" else "additionalProperties"
        schema[inner] = _openapi(node.items, kind, components)
    return schema


def _merging(kind: str, field: str, node: Node) -> Json:
    """The extensions from which kubectl computes strategic merge patches of a list."""
    if node.type != "array":
        return {}
    key = merge_keys.list_key(kind, field)
    if key:
        return {"x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": key}
    return {"x-kubernetes-patch-strategy": "merge"} if field in merge_keys.UNION_LISTS else {}


def _component_name(struct: StructClass, kind: type[Object]) -> str:
    """Such as `io.k8s.api.core.v1.Pod` and `dev.windlass.v1alpha1.Run`."""
    resource = kind.resource
    if struct.__module__ == meta.__name__:
        return f"{META_PREFIX}.{struct.__name__}"
    if validate.is_own(kind):
        return f"dev.windlass.{resource.version}.{struct.__name__}"
    group = resource.group.split(".")[0] or "core"
    return f"io.k8s.api.{group}.{resource.version}.{struct.__name__}"


# --- shared -------------------------------------------------------------------------------------


def _object(node: Node, convert: Any) -> Json:
    """`properties`, `required`, with descriptions and defaults."""
    properties: Json = {}
    for name, field in node.fields.items():
        inner = convert(field.node)
        description = _description(node, field)
        if description:
            inner = {"description": description, **_without(inner, "description")}
        if field.default is not NOTHING:
            inner["default"] = field.default
        properties[name] = inner
    needed = [name for name, field in node.fields.items() if field.required]
    return {"properties": properties} | ({"required": needed} if needed else {})


def _description(node: Node, field: type_tree.Field) -> str:
    if field.name == "metadata" and field.node.struct is meta.ObjectMeta:
        return _METADATA
    if node.struct is None:
        return ""
    found = docstrings.of_field(node.struct, field.name)
    return found or (docstrings.of_struct(field.node.struct) if field.node.struct else "")


def _basics(node: Node) -> Json:
    """Type and bounds of a value; no children."""
    schema: Json = {}
    if node.type == "int-or-string":
        schema["x-kubernetes-int-or-string"] = True
        schema["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    elif node.type != "any":
        schema["type"] = "object" if node.type == "map" else node.type
    if node.struct is not None and docstrings.of_struct(node.struct):
        schema["description"] = docstrings.of_struct(node.struct)
    sizes = {"array": ("minItems", "maxItems"), "map": ("minProperties", "maxProperties")}
    least, most = sizes.get(node.type, ("minLength", "maxLength"))
    bounds = {
        "enum": list(node.enum) or None,
        "minimum": node.minimum,
        "maximum": node.maximum,
        least: node.min_size,
        most: node.max_size,
        "pattern": node.pattern or None,
        "format": "int64" if node.type == "integer" else None,
    }
    return schema | {key: value for key, value in bounds.items() if value is not None}


def _without(schema: Json, key: str) -> Json:
    return {name: value for name, value in schema.items() if name != key}
