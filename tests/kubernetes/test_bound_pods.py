"""What no scheduler checks for pods that are created on their node, on a real control plane:
taints, cordons, volumes, devices, quotas, admission, and nodes that refuse.

Scheduler and controllers run as processes; nodes are played by `tests.harness.players`. Every test
has a namespace and nodes of its own, found by a label.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import players, rest
from tests.harness.control_plane import ControlPlane
from tests.harness.parts import Part
from tests.harness.plugin import CRDS
from tests.harness.waiting import until
from tests.kubernetes.bound_pods import PATIENCE, Case, Json, post
from windlass.control.model import capabilities
from windlass.kinds.values import times

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def plane(kubernetes_binaries: Path) -> Iterator[ControlPlane]:
    with ControlPlane.start(crds=CRDS) as started:
        post(started.rest, "/api/v1/namespaces", {"metadata": {"name": "windlass-system"}})
        post(started.rest, "/apis/windlass.dev/v1alpha1/queues", {
            "apiVersion": "windlass.dev/v1alpha1", "kind": "Queue",
            "metadata": {"name": "default"}, "spec": {},
        })  # fmt: skip
        yield started


@pytest.fixture(scope="module")
def kubelets(plane: ControlPlane) -> Iterator[players.Players]:
    own = rest.from_kubeconfig(plane.kubeconfig)
    playing = players.Players(own)
    playing.start()
    yield playing
    playing.stop()
    own.close()


@pytest.fixture(scope="module")
def parts(
    plane: ControlPlane, kubelets: players.Players, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("parts")
    running = [Part(plane.kubeconfig, folder, name) for name in ("scheduler", "controllers")]
    yield
    for part in running:
        part.process.stop()


@pytest.fixture
def case(plane: ControlPlane, parts: None) -> Iterator[Case]:
    own = rest.from_kubeconfig(plane.kubeconfig)
    made = Case(own)
    yield made
    for each in own.get(made.runs).json["items"]:
        own.delete(f"{made.runs}/{each['metadata']['name']}")
    own.close()


# --- nodes ----------------------------------------------------------------------------------------


def test_taints_and_cordons_keep_members_away_and_tolerations_travel_with_the_pod(
    case: Case,
) -> None:
    case.node("closed", cordoned=True, cpu="64")
    case.node("kept", taints=[{"key": "kept", "effect": "NoSchedule"}], cpu="64")
    case.node("emptied", taints=[{"key": "emptied", "effect": "NoExecute"}], cpu="64")
    case.node("free", cpu="2", taints=[{"key": "windlass.dev/only", "effect": "NoExecute"}])
    case.submit("two", 2)
    assert case.reaches("two", "Succeeded")
    assert case.nodes_of("two") == {"free"}
    case.submit("three", 3)
    case.waits("three", "WaitingForCapacity", "2 fit now")
    accepted = [{"key": "emptied", "operator": "Exists", "effect": "NoExecute"}]
    case.submit("tolerant", 3, nodes={"tolerations": accepted})
    assert case.reaches("tolerant", "Succeeded")
    assert case.nodes_of("tolerant") == {"emptied"}
    carried = case.pods("tolerant")[0]["spec"]["tolerations"]
    assert any(each.get("key") == "emptied" for each in carried), carried


def test_a_node_that_refuses_costs_no_retry_and_is_held_back_for_that_shape(
    case: Case, kubelets: players.Players
) -> None:
    bad = case.node("bad", cpu="8")
    kubelets.refusing[bad] = "OutOfcpu"
    case.submit("first", 2)
    status = case.comes("first", lambda s: s.get("attempt", 0) >= 1, "a second attempt")
    assert status.get("retries", 0) == 0
    assert any(step.get("reason") == "NodeRefused" for step in status["history"])
    # Another of the shape is not sent there meanwhile, one of another shape is.
    case.submit("like-it", 2)
    case.waits("like-it", "WaitingForCapacity")
    del kubelets.refusing[bad]
    case.submit("unlike", 1, role={"resources": {"cpu": "2", "memory": "64Mi"}})
    case.reaches("unlike", "Succeeded")
    for name in ("first", "like-it"):
        assert case.reaches(name, "Succeeded").get("retries", 0) == 0
    refused = [_made(pod) for pod in case.pods("first") if pod["status"]["phase"] == "Failed"]
    assert min(map(_made, case.pods("like-it"))) >= min(refused) + 5


def _made(pod: Json) -> float:
    return times.parse(pod["metadata"]["creationTimestamp"]).timestamp()


def test_a_node_that_refuses_again_is_held_back_for_longer(
    case: Case, kubelets: players.Players
) -> None:
    kubelets.refusing[case.node("bad")] = "OutOfcpu"
    came = []
    # None was refused before itself: what keeps the later ones away is what others met there.
    for name in ("first", "second", "third"):
        case.submit(name)
        status = case.comes(name, lambda s: s.get("attempt", 0) == 1, "it was refused")
        assert status.get("retries", 0) == 0
        case.rest.merge(f"{case.runs}/{name}", {"spec": {"stop": True}})
        case.reaches(name, "Stopped")
        (pod,) = case.pods(name)
        assert pod["status"]["reason"] == "OutOfcpu"
        came.append(_made(pod))
    first, second, third = came
    assert second - first >= 5
    assert third - second >= 10


# --- memory ---------------------------------------------------------------------------------------


def test_shared_memory_is_part_of_the_memory_that_is_asked_for_and_counted(case: Case) -> None:
    case.node("n", memory="1000Mi")
    half = {"cpu": "100m", "memory": "600Mi", "shm": "500Mi"}
    case.submit("half", role={"resources": half}, run_for=None)
    case.reaches("half", "Running")
    (pod,) = case.pods("half")
    (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "shm")
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "500Mi"}
    (container,) = pod["spec"]["containers"]
    for amounts in (container["resources"]["requests"], container["resources"]["limits"]):
        assert amounts["memory"] == "600Mi", "the volume is charged to the container, once"
    # Of the 400Mi that are left none is held for /dev/shm besides, and none is given away twice.
    case.submit("more", role={"resources": half | {"memory": "401Mi", "shm": "1Mi"}})
    case.waits("more", "WaitingForCapacity", "memory")
    case.submit("rest", role={"resources": half | {"memory": "400Mi", "shm": "400Mi"}})
    case.reaches("rest", "Succeeded")
    too_much = {"roles": [{"command": ["true"], "resources": {"memory": "1Gi", "shm": "2Gi"}}]}
    answer = case.rest.post(case.runs, {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": "beyond"},
        "spec": too_much,
    })  # fmt: skip
    assert answer.status == 422
    assert "must be at most the memory, which includes it" in answer.json["message"]


# --- devices --------------------------------------------------------------------------------------


def test_whole_devices_are_extended_resources_and_shares_need_a_plugin_that_grants_them(
    case: Case,
) -> None:
    case.node("gpus", nvidia_com__gpu="2")
    case.submit("both", role={"devices": [{"kind": "gpu", "count": 2}]}, run_for=None)
    case.reaches("both", "Running")
    (pod,) = case.pods("both")
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    case.submit("one-more", role={"devices": [{"kind": "gpu"}]})
    case.waits("one-more", "WaitingForCapacity", "gpu")
    case.submit("part", role={"devices": [{"kind": "gpu", "share": "1/4"}]})
    case.waits("part", "Impossible", "no node grants shares of gpu")
    case.submit("size", role={"devices": [{"kind": "gpu", "memory": "8Gi"}]})
    case.waits("size", "Impossible", "no node grants")
    case.rest.merge(f"{case.runs}/both", {"spec": {"stop": True}})
    case.reaches("one-more", "Succeeded")


def _granting(case: Case) -> str:
    """A node with one device, of which a plug-in there grants shares."""
    name = case.node("grants", nvidia_com__gpu="1")
    told = {"metadata": {"annotations": {"windlass.dev/capabilities": "shares"}}}
    assert case.rest.merge(f"/api/v1/nodes/{name}", told).status == 200
    return name


def test_shares_are_granted_where_the_node_names_the_plugin_and_the_pod_the_device(
    case: Case,
) -> None:
    _granting(case)
    quarter = {"devices": [{"kind": "gpu", "share": "1/4"}]}
    case.submit("parts", 3, role=quarter, run_for=None)
    case.reaches("parts", "Running")
    for pod in case.pods("parts"):
        (granted,) = pod["metadata"]["annotations"]["windlass.dev/devices"].split(",")
        assert granted == "nvidia.com/gpu/0:250"
        assert "nvidia.com/gpu" not in pod["spec"]["containers"][0]["resources"]["limits"]
    apart = {"devices": [{"kind": "gpu", "share": "1/4", "isolation": "hard"}]}
    case.submit("apart", role=apart)
    case.waits("apart", "Impossible", "apart from each other as strictly as hard")
    case.submit("two-more", 2, role=quarter)
    case.waits("two-more", "WaitingForCapacity", "gpu")
    case.submit("whole", role={"devices": [{"kind": "gpu"}]})
    case.waits("whole", "WaitingForCapacity", "gpu")
    case.rest.merge(f"{case.runs}/parts", {"spec": {"stop": True}})
    for name in ("two-more", "whole"):
        case.reaches(name, "Succeeded")


def test_shares_by_size_fill_a_device_and_the_pod_says_how_much_of_it_is_its_own(
    case: Case,
) -> None:
    _granting(case)

    def percent(amount: int) -> Json:
        return {"devices": [{"kind": "gpu", "compute": amount}]}

    case.submit("most", role=percent(60), run_for=None)
    case.reaches("most", "Running")
    (pod,) = case.pods("most")
    assert pod["metadata"]["annotations"]["windlass.dev/devices"] == "nvidia.com/gpu/0:600"
    assert "nvidia.com/gpu" not in pod["spec"]["containers"][0]["resources"]["limits"]
    case.submit("too-much", role=percent(41))
    case.waits("too-much", "WaitingForCapacity", "gpu")
    case.submit("rest", role=percent(40))
    case.reaches("rest", "Succeeded")


def test_shares_by_memory_are_granted_where_a_node_says_how_much_its_devices_have(
    case: Case,
) -> None:
    node = _granting(case)

    def mebibytes(amount: int) -> Json:
        return {"devices": [{"kind": "gpu", "memory": f"{amount}Mi"}]}

    case.submit("most", role=mebibytes(8192), run_for=None)
    case.waits("most", "Impossible", "8192Mi of a gpu", "has the label windlass.dev/gpu-memory")
    # As NVIDIA's feature discovery says it.
    told = {"metadata": {"labels": {"nvidia.com/gpu.memory": "10240"}}}
    assert case.rest.merge(f"/api/v1/nodes/{node}", told).status == 200
    case.reaches("most", "Running")
    (pod,) = case.pods("most")
    assert pod["metadata"]["annotations"]["windlass.dev/devices"] == "nvidia.com/gpu/0:0:8192Mi"
    assert "nvidia.com/gpu" not in pod["spec"]["containers"][0]["resources"]["limits"]
    case.submit("too-much", role=mebibytes(2049))
    case.waits("too-much", "WaitingForCapacity", "gpu")
    case.submit("rest", role=mebibytes(2048))
    case.reaches("rest", "Succeeded")
    case.submit("never", role=mebibytes(10241))
    case.waits("never", "Impossible", "10241Mi", "the largest", "has 10240Mi")


def test_a_bundle_is_the_nodes_choice_where_device_locality_is_unknown(case: Case) -> None:
    case.node("gpus", nvidia_com__gpu="4", windlass_dev__rdma="2")
    role = {"devices": [{"kind": "gpu", "count": 2}, {"kind": "rdma"}]}
    bundle = {"devices": ["gpu", "rdma"], "within": "numa"}
    placement = {"nodes": {"selector": {"case": case.name}}, "bundle": bundle}
    case.submit("near", role=role, placement=placement, run_for=None)
    status = case.reaches("near", "Running")
    assert "the node of each replica chose its devices" in status["message"]


def test_claims_of_dynamic_resource_allocation_are_unsupported_and_never_created(
    case: Case,
) -> None:
    case.node("n")
    case.submit("claims", overrides={"resourceClaims": [
        {"name": "gpu", "resourceClaimTemplateName": "any"}]})  # fmt: skip
    case.waits("claims", "Unsupported", "spec.overrides.resourceClaims")
    assert case.pods() == []


# --- what experts override ------------------------------------------------------------------------


def _classes(case: Case, name: str) -> None:
    """Of priority and of runtime."""
    for path, body in (
        ("scheduling.k8s.io/v1/priorityclasses", {"value": 1234}),
        ("node.k8s.io/v1/runtimeclasses", {"handler": "kata"}),
    ):
        post(case.rest, f"/apis/{path}", {"metadata": {"name": name}, **body})


def test_what_experts_override_is_on_the_pod_and_what_is_ours_stays(case: Case) -> None:
    case.node("n")
    classed = f"{case.name}-class"
    _classes(case, classed)
    case.submit("expert", run_for=None, environment={"image": "mine:latest"}, overrides={
        "labels": {"mine": "yes", "windlass.dev/run": "another"},
        "annotations": {"mine": "too", "windlass.dev/devices": "nvidia.com/gpu/0"},
        "imagePullPolicy": "Never", "imagePullSecrets": ["registry"],
        "runtimeClassName": classed, "priorityClassName": classed,
        "securityContext": {"runAsUser": 5, "runAsGroup": 6, "fsGroup": 7},
        "hostNetwork": True,
    })  # fmt: skip
    case.reaches("expert", "Running")
    (pod,) = case.pods("expert")
    metadata, spec = pod["metadata"], pod["spec"]
    assert metadata["labels"]["mine"] == "yes"
    assert metadata["annotations"]["mine"] == "too"
    assert "windlass.dev/devices" not in metadata["annotations"], "nobody takes devices by that"
    assert [each["imagePullPolicy"] for each in spec["containers"]] == ["Never"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert (spec["runtimeClassName"], spec["priorityClassName"]) == (classed, classed)
    assert spec["priority"] == 1234
    held = spec["securityContext"]
    assert (held["runAsUser"], held["runAsGroup"], held["fsGroup"]) == (5, 6, 7)
    assert held["runAsNonRoot"], "the rest is as restricted as before"
    assert held["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "hostNetwork" not in spec, "what is not listed cannot be set"


def test_an_override_with_a_missing_reference_waits_with_a_message_until_it_exists(
    case: Case,
) -> None:
    case.node("n")
    missing = f"{case.name}-late"
    case.submit("priority", overrides={"priorityClassName": missing})
    case.submit("runtime", overrides={"runtimeClassName": missing})
    for name, words in (
        ("priority", f"no PriorityClass with name {missing} was found"),
        ("runtime", f"there is no RuntimeClass {missing}"),
    ):
        assert case.waits(name, "AdmissionRefused", words).get("retries", 0) == 0
    assert case.pods() == []
    _classes(case, missing)
    for name in ("priority", "runtime"):
        assert case.reaches(name, "Succeeded").get("retries", 0) == 0


def _runtime(case: Case, name: str, **body: Any) -> str:
    name = f"{case.name}-{name}"
    post(case.rest, "/apis/node.k8s.io/v1/runtimeclasses",
         {"metadata": {"name": name}, "handler": "kata", **body})  # fmt: skip
    return name


def test_what_a_runtime_needs_for_each_pod_is_counted_before_its_node_is_decided(
    case: Case,
) -> None:
    case.node("n")
    heavy = _runtime(case, "heavy", overhead={"podFixed": {"cpu": "250m", "memory": "120Mi"}})
    for name in "abcd":
        case.submit(name, run_for=None, overrides={"runtimeClassName": heavy})

    def waiting() -> list[str]:
        return [name for name in "abcd" if case.status(name).get("phase") != "Running"]

    # Either: times of an API server are in seconds, and in the same one no run came first.
    until(lambda: len(waiting()) == 1, "all but one run", PATIENCE)
    (last,) = waiting()
    case.waits(last, "WaitingForCapacity", "needs 1.25 cpu", f"of it for RuntimeClass {heavy}")
    # What the API server itself added is what was counted.
    pods = case.pods()
    assert [pod["spec"]["overhead"]["cpu"] for pod in pods] == ["250m"] * 3
    case.submit("whole", role={"resources": {"cpu": "4", "memory": "64Mi"}},
                overrides={"runtimeClassName": heavy})  # fmt: skip
    case.waits("whole", "Impossible", "needs 4.25 cpu", f"0.25 cpu of it for RuntimeClass {heavy}")


def test_a_gang_goes_where_its_runtime_is_and_tolerates_what_that_tolerates(case: Case) -> None:
    case.node("plain")
    taint = {"key": "sandbox", "value": "only", "effect": "NoSchedule"}
    case.node("sandboxed", labels={"sandbox": case.name}, taints=[taint])
    where = {"nodeSelector": {"sandbox": case.name},
             "tolerations": [{"key": "sandbox", "operator": "Exists"}]}  # fmt: skip
    named = _runtime(case, "sandbox", scheduling=where)
    case.submit("inside", 2, run_for=None, overrides={"runtimeClassName": named})
    case.reaches("inside", "Running")
    assert case.nodes_of("inside") == {"sandboxed"}
    nowhere = _runtime(case, "nowhere", scheduling={"nodeSelector": {"sandbox": "none"}})
    case.submit("outside", overrides={"runtimeClassName": nowhere})
    case.waits("outside", "Impossible", "labels and taints", f"those of RuntimeClass {nowhere}")


def test_an_override_that_no_pod_can_have_ends_the_run_with_the_api_servers_words(
    case: Case,
) -> None:
    case.node("n")
    case.submit("wrong", overrides={"labels": {"not a label": "x"}})
    case.waits("wrong", "Unsupported", "metadata.labels: Invalid value", "not a label")
    assert case.reaches("wrong", "Failed")["reason"] == "Unsupported"
    assert case.pods() == []


def test_strict_validation_names_the_override_that_does_not_exist(case: Case) -> None:
    spec = {"roles": [{"command": ["true"]}], "overrides": {"hostNetwork": True}}
    body = {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": "host"},
        "spec": spec,
    }  # fmt: skip
    answer = case.rest.request("POST", case.runs, body, fieldValidation="Strict")
    assert answer.status == 400
    assert 'unknown field "spec.overrides.hostNetwork"' in answer.json["message"]


# --- volumes --------------------------------------------------------------------------------------


def test_a_claim_that_waits_for_its_node_gets_the_node_and_is_bound_before_pods_exist(
    case: Case,
) -> None:
    zone = "topology.kubernetes.io/zone"
    for name, cpu in (("z1", "2"), ("z2", "32")):
        case.node(name, labels={zone: f"{case.name}-{name}"}, cpu=cpu)
    allowed = {"key": zone, "values": [f"{case.name}-z1"]}
    post(case.rest, "/apis/storage.k8s.io/v1/storageclasses", {
        "metadata": {"name": case.name}, "provisioner": "test.windlass.dev/nobody",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": [{"matchLabelExpressions": [allowed]}],
    })  # fmt: skip
    mounts = [{"from": "claim:data", "path": "/data"}]
    case.submit("early", mounts=mounts)
    case.waits("early", "WaitingForData", "claim data does not exist")
    claims = f"/api/v1/namespaces/{case.name}/persistentvolumeclaims"
    size = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    post(case.rest, claims, {
        "metadata": {"name": "data"}, "spec": {**size, "storageClassName": case.name}})  # fmt: skip
    case.waits("early", "WaitingForData", "claim data has its volume for node")
    chosen = case.rest.get(f"{claims}/data").json["metadata"]["annotations"]
    assert chosen["volume.kubernetes.io/selected-node"] == f"{case.name}-z1"
    assert case.pods() == []
    _provide(case, zone, size)
    assert case.reaches("early", "Succeeded")
    assert case.nodes_of("early") == {"z1"}
    case.submit("later", mounts=mounts)
    assert case.reaches("later", "Succeeded")
    assert case.nodes_of("later") == {"z1"}


def test_a_team_without_the_claim_for_environments_gets_the_remedy_and_continues_once_it_exists(
    case: Case,
) -> None:
    """Pods that mount a claim which does not exist would wait at their node for ever, silently."""
    case.node("n")
    path = "/api/v1/namespaces/windlass-system/configmaps"
    facts = capabilities.Engine(
        server="https://127.0.0.1:9", image="any", environments="claim:kept", admission=False
    )
    post(case.rest, path, {"metadata": {"name": capabilities.NAME}, "data": facts.data()})
    try:
        case.submit("wants", environment={"requirements": ["six"]})
        case.submit("plain")
        told = (
            "claim kept does not exist",
            f"create it in {case.name}",
            "keeps environments there",
        )
        case.waits("wants", "WaitingForData", *told)
        case.reaches("plain", "Succeeded")
        assert case.pods("wants") == []
        claims = f"/api/v1/namespaces/{case.name}/persistentvolumeclaims"
        shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        room, volume = {"storage": "1Gi"}, f"{case.name}-kept"
        post(case.rest, "/api/v1/persistentvolumes", {
            "metadata": {"name": volume},
            "spec": {**shared, "capacity": room, "hostPath": {"path": "/nowhere"}},
        })  # fmt: skip
        post(case.rest, claims, {
            "metadata": {"name": "kept"},
            "spec": {**shared, "resources": {"requests": room}, "volumeName": volume},
        })  # fmt: skip
        case.waits("wants", "WaitingForData", "has built its environment")
        (builder,) = (pod for pod in case.pods() if pod["metadata"]["name"].startswith("environ"))
        assert {"name": "environments", "persistentVolumeClaim": {"claimName": "kept"}} in (
            builder["spec"]["volumes"]
        )
    finally:
        case.rest.delete(f"{path}/{capabilities.NAME}")


def _provide(case: Case, zone: str, size: Json) -> None:
    """What a provisioner does: a volume in the zone of the chosen node, for this claim."""
    term = {"key": zone, "operator": "In", "values": [f"{case.name}-z1"]}
    post(case.rest, "/api/v1/persistentvolumes", {
        "metadata": {"name": case.name},
        "spec": {
            "accessModes": size["accessModes"], "capacity": {"storage": "1Gi"},
            "storageClassName": case.name, "hostPath": {"path": "/nowhere"},
            "claimRef": {"namespace": case.name, "name": "data"},
            "nodeAffinity": {
                "required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}},
        },
    })  # fmt: skip


# --- admission ------------------------------------------------------------------------------------


def test_a_quota_of_the_namespace_is_a_limit_that_is_named(case: Case) -> None:
    case.node("n", cpu="16")
    quotas = f"/api/v1/namespaces/{case.name}/resourcequotas"
    post(case.rest, quotas, {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "2"}}})
    until(lambda: "hard" in case.rest.get(f"{quotas}/small").json.get(
        "status", {}), "it is enforced")  # fmt: skip
    case.submit("three", 3)
    case.waits("three", "WaitingForQuota", f"ResourceQuota {case.name}/small", "leaves 2 pods")
    assert case.pods() == []
    assert case.status("three").get("attempt", 0) == 0
    case.submit("two", 2)
    case.reaches("two", "Succeeded")
    case.rest.merge(f"{quotas}/small", {"spec": {"hard": {"pods": "3"}}})
    case.reaches("three", "Succeeded")


def test_a_run_that_is_not_admitted_gets_the_message_before_any_pod_exists(case: Case) -> None:
    case.node("n", cpu="16")
    limits = f"/api/v1/namespaces/{case.name}/limitranges"
    post(case.rest, limits, {"metadata": {"name": "small"}, "spec": {"limits": [
        {"type": "Container", "max": {"cpu": "500m"}}]}})  # fmt: skip
    with case.rest.watch(f"/api/v1/namespaces/{case.name}/pods", timeoutSeconds=3) as watch:
        case.submit("large", 3)
        status = case.waits("large", "AdmissionRefused", "maximum cpu usage per Container is 500m")
        assert [event for event in watch if event["type"] == "ADDED"] == []
    assert status.get("retries", 0) == 0
    case.rest.delete(f"{limits}/small")
    assert case.reaches("large", "Succeeded").get("retries", 0) == 0


def _refuse(case: Case, label: str, value: str, message: str) -> str:
    """No pods with this label in this namespace, from now on; the beginning of the policy's path,
    to remove it by."""
    rule = f"object.metadata.?labels[?'{label}'].orValue('') != '{value}'"
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
    post(case.rest, f"{policies}ies", {
        "metadata": {"name": case.name},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["pods"]}]},
            "validations": [{"expression": rule, "message": message}],
        },
    })  # fmt: skip
    chosen = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": case.name}}}
    post(case.rest, f"{policies}ybindings", {
        "metadata": {"name": case.name},
        "spec": {"policyName": case.name, "validationActions": ["Deny"],
                 "matchResources": chosen},
    })  # fmt: skip
    probe = {"metadata": {"name": "probe", "labels": {label: value}},
             "spec": {"containers": [{"name": "c", "image": "none"}]}}  # fmt: skip
    path = f"/api/v1/namespaces/{case.name}/pods"
    until(lambda: case.rest.post(path, probe, dryRun="All").status == 422, "the policy is enforced")
    return policies


def test_a_policy_is_found_by_the_rehearsal_of_each_role(case: Case) -> None:
    case.node("n", cpu="16")
    policies = _refuse(case, "windlass.dev/role", "worker", "no workers here")
    path = f"/api/v1/namespaces/{case.name}/pods"
    with case.rest.watch(path, timeoutSeconds=3) as watch:
        case.submit("gang", 3)
        status = case.waits("gang", "AdmissionRefused", "no workers here")
        assert [event for event in watch if event["type"] == "ADDED"] == []
    assert status.get("retries", 0) == 0
    case.rest.delete(f"{policies}ybindings/{case.name}")
    assert case.reaches("gang", "Succeeded").get("retries", 0) == 0


def test_pod_security_of_a_namespace_is_found_by_the_rehearsal(case: Case) -> None:
    case.node("n", cpu="16")
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    space = f"/api/v1/namespaces/{case.name}"
    assert case.rest.merge(space, {"metadata": {"labels": labels}}).status == 200
    case.submit("usual", 2)
    case.reaches("usual", "Succeeded")
    with case.rest.watch(f"{space}/pods", timeoutSeconds=3) as watch:
        case.submit("rooted", 2, overrides={"securityContext": {"runAsUser": 0}})
        case.waits("rooted", "AdmissionRefused", "restricted", "runAsNonRoot")
        began = [e["object"]["metadata"]["name"] for e in watch if e["type"] == "ADDED"]
    assert not [name for name in began if name.startswith("rooted")]


def test_a_refusal_in_the_middle_leaves_no_half_of_a_gang(case: Case) -> None:
    case.node("n", cpu="16")
    policies = _refuse(case, "windlass.dev/index", "2", "nobody is the third")
    case.submit("gang", 4, run_for=None)
    case.comes("gang", lambda status: status.get("attempt", 0) >= 1, "the attempt is over")
    status = case.waits("gang", "AdmissionRefused", "nobody is the third")
    assert status.get("retries", 0) == 0
    until(lambda: case.pods() == [], "no pod stays", PATIENCE)
    case.rest.delete(f"{policies}ybindings/{case.name}")
    case.reaches("gang", "Running")
    assert len(case.pods("gang")) == 4
    case.rest.delete(f"{policies}ies/{case.name}")
