"""A real kube-apiserver, with our CRDs, and the embedded server judge every object alike."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import changes
from tests.harness.control_plane import ControlPlane
from tests.harness.embedded import EmbeddedServer
from tests.harness.rest import Answer, Rest
from tests.unit.kinds import cases, core_cases
from windlass.kinds import registry, validate
from windlass.kinds.types.meta import Object

Json = dict[str, Any]


@pytest.fixture(
    scope="module", params=["embedded", pytest.param("cluster", marks=pytest.mark.kubernetes)]
)
def server(request: pytest.FixtureRequest) -> Iterator[Rest]:
    """Each server in turn, as its admin."""
    if request.param == "cluster":
        cluster: Rest = request.getfixturevalue("control_plane_rest")
        changes.install(cluster)
        yield cluster
        return
    embedded: EmbeddedServer = request.getfixturevalue("embedded_server")
    client = embedded.rest()
    yield client
    client.close()


def kind_of(value: Json) -> type[Object]:
    return registry.by_kind()[value["apiVersion"], value["kind"]]


def try_create(rest: Rest, value: Json) -> Answer:
    path = kind_of(value).resource.path(value["metadata"].get("namespace", ""))
    return rest.post(path, value, dryRun="All")


def refused_fields(answer: Answer) -> list[str]:
    return [cause.get("field", "") for cause in answer.json["details"].get("causes", ())]


def our_fields(value: Json, old: Json | None = None) -> list[str]:
    kind = kind_of(value)
    filled = validate.defaulted(kind, validate.prune(kind, value)[0])
    before = None if old is None else validate.defaulted(kind, old)
    return [problem.path for problem in validate.validate(kind, filled, before)]


@pytest.mark.kubernetes
def test_all_crds_are_established_and_structural(control_plane_rest: Rest) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    found = {item["metadata"]["name"]: item for item in control_plane_rest.get(path).json["items"]}
    for kind in registry.OWN:
        crd = found[kind.resource.key]
        conditions = {c["type"]: c["status"] for c in crd["status"]["conditions"]}
        assert conditions["Established"] == "True"
        assert "NonStructuralSchema" not in conditions
        assert crd["status"]["acceptedNames"]["shortNames"] == list(kind.resource.short_names)


@pytest.mark.parametrize("name", cases.GOOD)
def test_good_objects_are_created_with_our_defaults(server: Rest, name: str) -> None:
    value = cases.GOOD[name]
    answer = try_create(server, value)
    assert answer.status == 201, answer.summary
    assert answer.json["spec"] == validate.defaulted(kind_of(value), value)["spec"]


@pytest.mark.parametrize("name", cases.BAD)
def test_bad_objects_are_refused_at_the_same_field(server: Rest, name: str) -> None:
    bad = cases.BAD[name]
    answer = try_create(server, bad.value)
    if answer.status == 201:
        assert not bad.by_cluster, "only what CEL cannot tell may pass, and only on a cluster"
        assert answer.json["metadata"].get("managedFields"), "the embedded server must refuse it"
        return
    assert answer.status == 422, answer.summary
    # CEL reports a bad name in a map at the map, we at the name.
    parents = {bad.path, bad.path.rpartition(".")[0], ""}
    assert parents & set(refused_fields(answer)), answer.summary


@pytest.mark.parametrize("name", cases.CHANGES)
def test_changes_are_judged_alike(server: Rest, name: str) -> None:
    old, new, path = cases.CHANGES[name]
    _judge_change(server, old, new, path)


@pytest.mark.parametrize("name", core_cases.GOOD)
def test_good_core_objects_are_created_with_our_defaults(server: Rest, name: str) -> None:
    value = core_cases.GOOD[name]
    answer = try_create(server, value)
    assert answer.status == 201, answer.summary
    ours = validate.defaulted(kind_of(value), value)
    assert _missing(ours, answer.json) == []


@pytest.mark.parametrize("name", core_cases.BAD)
def test_bad_core_objects_are_refused_at_the_same_field(server: Rest, name: str) -> None:
    value, path = core_cases.BAD[name]
    answer = try_create(server, value)
    assert answer.status in (403, 422), answer.summary
    # kube-apiserver looks for taints in metadata; PriorityClasses it refuses without causes.
    same = {path, path.replace("spec.taints", "metadata.taints")}
    assert answer.status == 403 or same & set(refused_fields(answer)), answer.summary


@pytest.mark.parametrize("name", core_cases.CHANGES)
def test_core_changes_are_judged_alike(server: Rest, name: str) -> None:
    old, new, path = core_cases.CHANGES[name]
    _judge_change(server, old, new, path)


@pytest.mark.kubernetes
def test_kubectl_explains_our_fields_in_our_words(
    control_plane: ControlPlane, kubernetes_binaries: Path
) -> None:
    for field, words in (
        ("run.spec.roles", "Program and arguments"),
        ("cronrun.spec.schedule", "as in cron"),
        ("queue.spec.guarantee", "gets on demand"),
    ):
        told = subprocess.run(
            [kubernetes_binaries / "kubectl", "--kubeconfig", control_plane.kubeconfig,
             "explain", field],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert words in " ".join(told.stdout.split())


def test_unknown_fields_are_pruned_and_strictly_refused(server: Rest) -> None:
    value = cases.role(replica=3)
    loose = try_create(server, value)
    assert "replica" not in loose.json["spec"]["roles"][0]
    path = kind_of(value).resource.path("default")
    strict = server.post(path, value, dryRun="All", fieldValidation="Strict")
    assert strict.status == 400
    assert 'unknown field "spec.roles[0].replica"' in strict.json["message"]


def test_status_is_validated_and_written_apart_from_spec(server: Rest) -> None:
    value = cases.named(cases.run_object(), "with-status")
    path = kind_of(value).resource.path("default")
    server.post(path, value)
    try:
        members = {"worker": [{"node": "n1", "devices": ["gpu/0"]}]}
        patch: Json = {"status": {"phase": "Starting", "assignment": {
            "attempt": 0, "epoch": 1, "members": members}}, "spec": {"priority": 1}}  # fmt: skip
        good = server.merge(f"{path}/with-status/status", patch)
        assert good.json["status"]["assignment"]["members"] == members
        assert good.json["spec"]["priority"] == 50
        bad = server.merge(f"{path}/with-status/status", {"status": {"phase": "Odd"}})
        assert bad.status == 422
    finally:
        server.delete(f"{path}/with-status")


def _judge_change(rest: Rest, old: Json, new: Json, path: str) -> None:
    resource = kind_of(old).resource
    collection = resource.path(old["metadata"].get("namespace", ""))
    single = f"{collection}/{old['metadata']['name']}"
    created = rest.post(collection, old)
    assert created.status == 201, created.summary
    try:
        current = created.json["metadata"]
        sent = new | {"metadata": current | new["metadata"]}
        if resource.kind == "Pod":
            sent["spec"] = _with_what_admission_added(
                created.json["spec"], old["spec"], new["spec"]
            )
        answer = rest.put(single, sent, dryRun="All")
        assert answer.status == (422 if path else 200), answer.summary
        if path:
            # A policy says in its words which field it is about, and not of which role.
            told = f"denied request: {path.replace('[0]', '[]')}: "
            assert path in refused_fields(answer) or told in answer.json["message"], answer.summary
    finally:
        rest.delete(single, {"gracePeriodSeconds": 0})


def _with_what_admission_added(created: Json, old: Json, new: Json) -> Json:
    """The pod's new spec with the account, volumes and tolerations that the cluster put in."""
    spec = created | new
    spec["containers"] = [
        {**(created["containers"][i] if i < len(created["containers"]) else {}), **container}
        for i, container in enumerate(new["containers"])
    ]
    added = [t for t in created.get("tolerations", []) if t not in old.get("tolerations", [])]
    spec["tolerations"] = new.get("tolerations", []) + added
    return {key: value for key, value in spec.items() if key in new or key not in old}


def _missing(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """What we fill in that the cluster has not."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [
            problem
            for key, value in ours.items()
            for problem in (
                _missing(value, theirs[key], f"{path}.{key}")
                if key in theirs
                else ([f"{path}.{key}"] if value not in ({}, [], "") else [])
            )
        ]
    if isinstance(ours, list) and isinstance(theirs, list):
        return [p for o, t in zip(ours, theirs, strict=False) for p in _missing(o, t, path)]
    return []
