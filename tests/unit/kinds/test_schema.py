"""Generated schemas: structural, complete, in step with the definitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.kinds import cases
from tools import generate, reference
from windlass.kinds import registry, schema_export, validate
from windlass.kinds.schema import docstrings, type_tree
from windlass.kinds.types.core import Container
from windlass.kinds.types.meta import Object

Json = dict[str, Any]
VALUE_KEYWORDS = {"minimum", "maximum", "pattern", "maxLength", "minLength", "enum", "format"}
ONLY_STRUCTURAL = {
    "type", "description", "default", "properties", "required", "items", "additionalProperties",
    "anyOf", "minItems", "maxItems", "minProperties", "maxProperties", "x-kubernetes-validations",
    "x-kubernetes-int-or-string", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
    "x-kubernetes-preserve-unknown-fields", *VALUE_KEYWORDS,
}  # fmt: skip
GROUPS = sorted({(kind.resource.group, kind.resource.version) for kind in registry.ALL})


def parts(node: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    """Every schema in a structural schema, with its path."""
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from parts(inner, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if isinstance(node.get(keyword), dict):
            yield from parts(node[keyword], f"{path}[]")


@pytest.mark.parametrize("kind", registry.OWN, ids=lambda kind: kind.__name__)
def test_crd_schemas_are_structural(kind: type[Object]) -> None:
    for path, node in parts(schema_export.structural(kind)):
        assert set(node) <= ONLY_STRUCTURAL, path
        if node.get("x-kubernetes-int-or-string"):
            assert "type" not in node, path
            assert node["anyOf"] == [{"type": "integer"}, {"type": "string"}], path
        else:
            assert isinstance(node["type"], str), path
            assert "anyOf" not in node, path
        assert not ("properties" in node and "additionalProperties" in node), path
        assert set(node.get("required", ())) <= set(node.get("properties", ())), path
        for key in node.get("x-kubernetes-list-map-keys", ()):
            item = node["items"]
            assert key in item.get("required", ()) or "default" in item["properties"][key], path


@pytest.mark.parametrize("kind", registry.OWN, ids=lambda kind: kind.__name__)
def test_every_field_of_our_kinds_is_described(kind: type[Object]) -> None:
    bare = [
        path
        for path, node in parts(schema_export.structural(kind))
        if path and not path.endswith("[]") and not node.get("description")
        and not path.startswith(".metadata")
    ]  # fmt: skip
    assert bare == []


@pytest.mark.parametrize("kind", registry.OWN, ids=lambda kind: kind.__name__)
def test_everything_a_user_writes_has_a_bound(kind: type[Object]) -> None:
    """Without bounds a cluster refuses rules over it as too dear, and an object may grow."""
    spec = schema_export.structural(kind)["properties"]["spec"]
    for path, node in parts(spec):
        needed = {"array": "maxItems", "string": "maxLength"}.get(node.get("type", ""))
        if "additionalProperties" in node:
            needed = "maxProperties"
        if needed and "enum" not in node and not path.endswith("ations[]"):
            assert needed in node or path.endswith("labels[]"), f"spec{path} lacks {needed}"


def test_a_checker_that_follows_the_schema_agrees_about_the_defaults() -> None:
    for value in cases.GOOD.values():
        kind = cases.KINDS[value["kind"]]
        filled = validate.defaulted(kind, value)
        assert _missing_defaults(schema_export.structural(kind), filled) == []


def _missing_defaults(node: Json, value: Any, path: str = "") -> list[str]:
    found = []
    for name, inner in node.get("properties", {}).items():
        if isinstance(value, dict) and name not in value and "default" in inner:
            found.append(f"{path}.{name}")
        elif isinstance(value, dict) and name in value:
            found += _missing_defaults(inner, value[name], f"{path}.{name}")
    if "items" in node and isinstance(value, list):
        for item in value:
            found += _missing_defaults(node["items"], item, f"{path}[]")
    return found


@pytest.mark.parametrize("group", GROUPS, ids="/".join)
def test_openapi_components_refer_only_to_each_other(group: tuple[str, str]) -> None:
    components = schema_export.openapi_schemas(*group)

    def references(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            if "$ref" in node:
                yield node["$ref"]
            for inner in node.values():
                yield from references(inner)
        elif isinstance(node, list):
            for inner in node:
                yield from references(inner)

    for name in references(components):
        assert name.removeprefix("#/components/schemas/") in components
    found = {
        gvk["kind"]
        for node in components.values()
        for gvk in node.get("x-kubernetes-group-version-kind", ())
    }
    assert found == {k.resource.kind for k in registry.ALL
                     if (k.resource.group, k.resource.version) == group}  # fmt: skip


def test_openapi_names_are_those_of_kubernetes() -> None:
    core = schema_export.openapi_schemas("", "v1")
    assert "io.k8s.api.core.v1.Pod" in core
    assert "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta" in core
    own = schema_export.openapi_schemas("windlass.dev", "v1alpha1")
    run_schema = own["dev.windlass.v1alpha1.Run"]
    assert run_schema["properties"]["spec"]["allOf"] == [
        {"$ref": "#/components/schemas/dev.windlass.v1alpha1.RunSpec"}
    ]
    assert run_schema["properties"]["spec"]["description"]


def test_kubectl_learns_how_lists_of_core_kinds_merge() -> None:
    core = schema_export.openapi_schemas("", "v1")
    containers = core["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]
    assert containers["x-kubernetes-patch-merge-key"] == "name"
    ports = core["io.k8s.api.core.v1.ServiceSpec"]["properties"]["ports"]
    assert ports["x-kubernetes-patch-merge-key"] == "port"
    assert core["io.k8s.api.core.v1.PodSpec"]["x-kubernetes-preserve-unknown-fields"]


def test_a_field_s_text_is_found_where_it_is_declared() -> None:
    assert docstrings.of_field(Container, "restart_policy").startswith("`Always`")
    assert docstrings.of_field(Container, "no_such_field") == ""
    spec = type_tree.of_kind(registry.OWN[0]).fields["spec"].node.struct
    assert spec is not None
    assert docstrings.of_field(spec, "roles") == "The groups of replicas."


@pytest.mark.parametrize("kind", registry.OWN, ids=lambda kind: kind.__name__)
def test_the_example_of_each_reference_page_is_valid(kind: type[Object]) -> None:
    page = reference.kind_page(kind)
    value = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    kept, unknown = validate.prune(kind, value)
    assert unknown == []
    assert validate.validate(kind, validate.defaulted(kind, kept)) == []


def test_generated_files_are_not_stale() -> None:
    assert generate.stale_files(generate.ROOT) == []


def test_stale_missing_and_left_over_files_are_named_and_repaired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--root", str(tmp_path)]
    assert generate.main([*where, "--check"]) == 1
    assert generate.main(where) == 0
    assert generate.main([*where, "--check"]) == 0
    reasons = tmp_path / "docs/reference/reasons.md"
    crd = tmp_path / "deploy/crds/runs.windlass.dev.yaml"
    left_over = tmp_path / "deploy/crds/old.yaml"
    handwritten = tmp_path / "docs/reference/other.md"
    left_over.write_text(reasons.read_text())
    reasons.write_text("edited")
    crd.unlink()
    handwritten.write_text("# By hand\n")
    capsys.readouterr()
    assert generate.main([*where, "--check"]) == 1
    named = capsys.readouterr().out
    assert "deploy/crds/old.yaml" in named
    assert "deploy/crds/runs.windlass.dev.yaml" in named
    assert "docs/reference/reasons.md" in named
    assert "other.md" not in named
    assert generate.main(where) == 0
    assert generate.main([*where, "--check"]) == 0
    assert handwritten.exists()
    assert not left_over.exists()
