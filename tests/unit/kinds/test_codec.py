"""Objects go over the wire and back without losing what the structs do not know."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from windlass.kinds import codec
from windlass.kinds.types import core, run

Json = dict[str, Any]


def pod(**container: Any) -> Json:
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "main", "image": "x"} | container]},
    }  # fmt: skip


def test_unknown_fields_survive_at_every_level() -> None:
    value = pod(livenessProbe={"exec": {"command": ["x"]}}, ports=[{"containerPort": 1, "z": 2}])
    value["spec"]["affinity"] = {"nodeAffinity": {}}
    value["someday"] = [1]
    value["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    assert codec.to_dict(codec.from_dict(core.Pod, value)) == value


def test_a_changed_field_takes_the_struct_s_value_and_the_rest_stays() -> None:
    obj = codec.from_dict(core.Pod, pod(livenessProbe={"a": 1}, command=["old"]))
    obj.spec.containers[0].command = ["new"]
    obj.spec.node_name = "n1"
    written = codec.to_dict(obj)["spec"]
    assert written["nodeName"] == "n1"
    assert written["containers"] == [
        {"name": "main", "image": "x", "command": ["new"], "livenessProbe": {"a": 1}}
    ]


def test_a_field_that_was_emptied_is_gone() -> None:
    obj = codec.from_dict(core.Pod, pod(command=["old"], env=[{"name": "A", "value": "1"}]))
    obj.spec.containers[0].command = None
    obj.spec.containers[0].env = []
    [container] = codec.to_dict(obj)["spec"]["containers"]
    assert "command" not in container
    assert container["env"] == []


def test_list_elements_keep_their_own_unknown_fields_when_the_list_changes() -> None:
    value = pod()
    value["spec"]["containers"] = [
        {"name": name, "image": "x", "probe": name} for name in ("a", "b", "c")
    ]
    obj = codec.from_dict(core.Pod, value)
    del obj.spec.containers[1]
    obj.spec.containers.reverse()
    obj.spec.containers.append(core.Container(name="d", image="y"))
    assert codec.to_dict(obj)["spec"]["containers"] == [
        {"name": "c", "image": "x", "probe": "c"},
        {"name": "a", "image": "x", "probe": "a"},
        {"name": "d", "image": "y"},
    ]


def test_unknown_fields_inside_maps_of_lists_survive() -> None:
    members = {"worker": [{"node": "n1", "rack": "r1"}]}
    value = {
        "metadata": {"name": "a"},
        "spec": {"roles": [{"name": "worker", "command": ["x"], "new": 1}]},
        "status": {"assignment": {"attempt": 0, "epoch": 1, "members": members}},
    }
    written = codec.to_dict(codec.from_dict(run.Run, value))
    assert written["status"]["assignment"]["members"] == members
    assert written["spec"]["roles"][0]["new"] == 1


def test_an_object_out_of_a_list_can_adopt_its_source() -> None:
    value = pod(livenessProbe={"a": 1})
    obj = msgspec.convert(value, core.Pod)
    assert not codec.has_source(obj)
    codec.adopt_source(obj, msgspec.json.encode(value))
    assert codec.to_dict(obj) == value


def test_kind_and_version_come_from_the_class() -> None:
    obj = run.Run(spec=run.RunSpec(roles=[run.Role(command=["x"])]))
    assert codec.to_dict(obj)["apiVersion"] == "windlass.dev/v1alpha1"
    assert msgspec.json.decode(codec.encode(obj))["kind"] == "Run"


JSON = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
UNKNOWN = st.dictionaries(st.text(min_size=1, max_size=6).map(lambda key: f"x{key}"), JSON)


@given(UNKNOWN, UNKNOWN, UNKNOWN)
def test_any_unknown_fields_come_back(top: Json, spec: Json, container: Json) -> None:
    value = pod(**container) | top
    value["spec"] = value["spec"] | spec
    assert codec.to_dict(codec.from_dict(core.Pod, value)) == value
