"""Random objects, near the edge of what is allowed: a cluster and our validation agree on each."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.rest import Rest
from tests.unit.kinds import cases
from windlass.kinds import validate
from windlass.kinds.schema import type_tree
from windlass.kinds.schema.type_tree import Node

Json = dict[str, Any]

TEXTS = [
    "a", "worker", "main", "A", "a-", "a.b", "a\n", "", "x" * 21, "x" * 64, "auto", "500m", "1.5Gi",
    "1GB", "-1", "1e3", "1e", "0s", "1h", "1h30m", "30m1h", "1/4", "4/4", "9/10", "/data", "data",
    "claim:a", "host:/a", "secret:", "3.11", "3", "@daily", "0 3 * * *", "* * * *", "UTC", "a b",
    "FOO_BAR", "9A", "gpu/h100", "\u00e9", "2026-01-01T10:20:00Z",
]  # fmt: skip
KEYS = ["a", "gpu", "cpu", "gpu/h100", "FOO", "_x", "9a", "", "a b"]


def values(node: Node, depth: int = 0) -> st.SearchStrategy[Any]:
    """Mostly what the node allows, and now and then what it does not."""
    odd = st.sampled_from([None, True, 1.5, "", [], {}, -1])
    return st.integers(0, 30).flatmap(lambda roll: odd if roll == 0 else _near(node, depth))


def _near(node: Node, depth: int) -> st.SearchStrategy[Any]:
    if node.enum:
        return st.sampled_from([*node.enum, *node.enum, *node.enum, "odd"])
    if node.type == "integer":
        return st.sampled_from(_edges(node))
    if node.type == "int-or-string":
        return st.sampled_from(_edges(node)) | _texts(node)
    if node.type == "string":
        return _texts(node)
    if node.type == "boolean":
        return st.booleans()
    if node.type == "array" and node.items is not None:
        return st.lists(values(node.items, depth + 1), min_size=node.min_size or 0, max_size=2)
    if node.type == "map" and node.items is not None:
        keys = st.sampled_from(_fitting(node.keys, KEYS) or KEYS) | st.sampled_from(KEYS)
        return st.dictionaries(keys, values(node.items, depth + 1), max_size=2)
    return _objects(node, depth)


def _objects(node: Node, depth: int) -> st.SearchStrategy[Json]:
    needed = {n: values(f.node, depth + 1) for n, f in node.fields.items() if f.required}
    free = {n: values(f.node, depth + 1) for n, f in node.fields.items() if not f.required}
    some = st.sets(st.sampled_from(sorted(free)), max_size=3) if free else st.just(set())
    return some.flatmap(
        lambda names: st.fixed_dictionaries(needed | {name: free[name] for name in names})
    )


def _texts(node: Node) -> st.SearchStrategy[str]:
    fitting = _fitting(node, TEXTS)
    return st.sampled_from(fitting * 4 + TEXTS if fitting else TEXTS)


def _fitting(node: Node | None, texts: list[str]) -> list[str]:
    if node is None or node.regex is None:
        return texts
    return [text for text in texts if node.regex.search(text)]


def _edges(node: Node) -> list[int]:
    least, most = node.minimum or 0, node.maximum or 1000
    return [least, least + 1, least + 1, most, most, least - 1, most + 1]


def specs(kind: str) -> st.SearchStrategy[tuple[str, Json]]:
    node = type_tree.of_kind(cases.KINDS[kind]).fields["spec"].node
    return _objects(node, 0).map(lambda spec: (kind, spec))


@pytest.mark.kubernetes
@settings(
    max_examples=250, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(specs("Run") | specs("CronRun") | specs("Queue"))
def test_random_objects_get_the_same_verdict(
    control_plane_rest: Rest, drawn: tuple[str, Json]
) -> None:
    kind = cases.KINDS[drawn[0]]
    resource = kind.resource
    value = {
        "apiVersion": resource.api_version, "kind": resource.kind,
        "metadata": {"name": "sample"}, "spec": drawn[1],
    }  # fmt: skip
    problems = validate.validate(kind, validate.defaulted(kind, value))
    beyond_cel = {"spec.schedule", "spec.timeZone", "spec.budget.timeZone"}
    ours = [str(problem) for problem in problems if problem.path not in beyond_cel]
    namespace = "default" if resource.namespaced else ""
    answer = control_plane_rest.post(resource.path(namespace), value, dryRun="All")
    assert answer.status in (201, 422), answer.summary
    if problems and not ours:
        return
    assert (answer.status == 422) == bool(ours), (ours, answer.summary)
    if answer.status == 201:
        assert answer.json["spec"] == validate.defaulted(kind, value)["spec"]
