"""Kubernetes' own kinds: what the embedded server refuses and fills in."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kinds import core_cases
from windlass.kinds import registry, validate
from windlass.kinds.types import core
from windlass.kinds.types.meta import Object

Json = dict[str, Any]


def problems_of(value: Json, old: Json | None = None) -> dict[str, str]:
    kind = registry.by_kind()[value["apiVersion"], value["kind"]]
    before = None if old is None else validate.defaulted(kind, old)
    found = validate.validate(kind, validate.defaulted(kind, value), before)
    return {problem.path: problem.message for problem in found}


@pytest.mark.parametrize("name", core_cases.GOOD)
def test_good_objects_are_accepted(name: str) -> None:
    assert problems_of(core_cases.GOOD[name]) == {}


@pytest.mark.parametrize("name", core_cases.BAD)
def test_bad_objects_are_refused_at_their_field(name: str) -> None:
    value, path = core_cases.BAD[name]
    assert path in problems_of(value)


@pytest.mark.parametrize("name", core_cases.CHANGES)
def test_only_some_fields_may_change(name: str) -> None:
    old, new, path = core_cases.CHANGES[name]
    assert list(problems_of(new, old)) == ([path] if path else [])


def test_types_of_known_fields_are_checked_and_unknown_fields_stay() -> None:
    value = core_cases.pod(terminationGracePeriodSeconds="30", someday={"a": [1]})
    assert list(problems_of(value)) == ["spec.terminationGracePeriodSeconds"]
    kept, unknown = validate.prune(core.Pod, value)
    assert kept["spec"]["someday"] == {"a": [1]}
    assert unknown == []


def test_what_the_structs_leave_open_is_checked_too() -> None:
    found = problems_of(core_cases.pod(volumes=[{"name": ["a"]}, {"name": {}}, {"name": "A"}]))
    assert list(found) == [f"spec.volumes[{index}].name" for index in range(3)]


def test_null_is_absence_in_core_kinds() -> None:
    assert problems_of(core_cases.pod(nodeSelector=None, tolerations=None)) == {}


def test_plain_text_of_a_secret_is_folded_into_its_data() -> None:
    value = core_cases.secret(stringData={"a": "new"}, data={"a": "b2xk", "b": "Yg=="})
    filled = validate.defaulted(core.Secret, value)
    assert filled["data"] == {"a": "bmV3", "b": "Yg=="}
    assert filled["type"] == "Opaque"
    assert "stringData" not in filled


def test_a_secret_that_is_not_base64_is_refused_without_showing_it() -> None:
    found = problems_of(core_cases.secret(data={"password": "hunter2!"}))
    assert "stringData" in found["data[password]"]
    assert "hunter2" not in found["data[password]"]


@pytest.mark.parametrize(
    ("image", "policy"),
    [("busybox", "Always"), ("busybox:latest", "Always"), ("busybox:1", "IfNotPresent"),
     ("host:5000/busybox", "Always"), ("host:5000/busybox:1", "IfNotPresent"),
     ("busybox@sha256:00", "IfNotPresent")],
)  # fmt: skip
def test_images_are_pulled_as_kubernetes_would(image: str, policy: str) -> None:
    filled = validate.defaulted(core.Pod, core_cases.pod(container={"image": image}))
    assert filled["spec"]["containers"][0]["imagePullPolicy"] == policy


@pytest.mark.parametrize(
    ("resources", "qos"),
    [({}, "BestEffort"), ({"limits": {"cpu": 1, "memory": 1}}, "Guaranteed"),
     ({"requests": {"cpu": 1}}, "Burstable"),
     ({"limits": {"cpu": 2, "memory": 1}, "requests": {"cpu": 1}}, "Burstable")],
)  # fmt: skip
def test_quality_of_service_follows_from_resources(resources: Json, qos: str) -> None:
    value = core_cases.pod(container={"resources": resources})
    assert validate.defaulted(core.Pod, value)["status"]["qosClass"] == qos


FIELDS = st.sampled_from(
    ["metadata", "spec", "status", "data", "stringData", "containers", "name", "ports", "volumes",
     "tolerations", "resources", "limits", "roleRef", "subjects", "labels", "taints"]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(core.ALL), st.dictionaries(FIELDS, JSON), st.none() | JSON)
def test_any_json_is_judged_without_failing(kind: type[Object], value: Json, old: Any) -> None:
    value["metadata"] = {"name": "a", **value["metadata"]} if isinstance(
        value.get("metadata"), dict) else {"name": "a"}  # fmt: skip
    before = copy.deepcopy(value)
    filled = validate.defaulted(kind, value)
    validate.validate(kind, filled, None)
    if validate.validate(kind, filled) == []:
        validate.validate(kind, filled, validate.defaulted(kind, {"metadata": {"name": "a"}}))
    assert value == before
