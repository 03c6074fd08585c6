"""Pods with `schedulerName: windlass` on a real control plane: placed by the same core as Runs,
through the binding API, alone and in gangs. There is no kubelet: bound pods do not start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.plugin import CRDS
from tests.kubernetes.external_pods import Json, World, gang, node, pod
from tests.kubernetes.external_pods import world as world
from windlass.control.runtime import informers

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def running(kubernetes_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One of its own: this scheduler decides over every node and pod that it finds."""
    with ControlPlane.start(crds=CRDS) as plane:
        world = World(plane, tmp_path_factory.mktemp("foreign"))
        world.make("/api/v1/namespaces", {"metadata": {"name": informers.NAMESPACE}})
        process = world.start()
        yield world
        process.kill()


def test_a_pod_that_asks_for_us_is_bound_where_it_fits(world: World) -> None:
    world.add_nodes(node("small", cpu="1"), node("large"))
    world.submit(pod("a", requests={"cpu": "4"}))
    assert world.is_bound("a") == "large"
    (condition,) = world.get("a")["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")


def test_a_pod_that_asks_for_another_scheduler_is_left_alone_but_counts(world: World) -> None:
    world.add_nodes(node("n1"))
    world.submit(pod("theirs", requests={"cpu": "5"}, nodeName="n1", schedulerName="other"))
    world.submit(pod("waits-for-them", schedulerName="other"))
    world.submit(pod("too-much", requests={"cpu": "4"}), pod("fits", requests={"cpu": "3"}))
    assert world.is_bound("fits") == "n1"
    assert "cpu" in world.why("too-much", "WaitingForCapacity")
    assert not world.node_of("waits-for-them")


def test_a_pod_waits_for_its_gates_and_one_with_claims_gets_a_condition_that_it_cannot_be_placed(
    world: World,
) -> None:
    world.add_nodes(node("n1"))
    claims = [{"name": "d", "resourceClaimName": "d"}]
    world.submit(
        pod("gated", schedulingGates=[{"name": "quota"}]), pod("claims", resourceClaims=claims)
    )
    assert "resourceClaims" in world.why("claims", "Unsupported")
    assert not world.node_of("gated")
    world.rest.merge(f"{world.pods()}/gated", {"spec": {"schedulingGates": []}})
    assert world.is_bound("gated") == "n1"


def test_a_gang_starts_whole_or_not_at_all(world: World) -> None:
    world.add_nodes(node("n1", cpu="4"), node("n2", cpu="4"))
    first = gang("first", 3, made=2, requests={"cpu": "2"})
    world.submit(*first)
    assert "2 of the gang's 3 pods exist" in world.why("first-1", "WaitingForMembers")
    assert not world.node_of("first-0")
    world.submit(gang("first", 3, requests={"cpu": "2"})[2])
    assert {world.is_bound(f"first-{i}") for i in range(3)} == {"n1", "n2"}
    world.submit(*gang("second", 2, requests={"cpu": "2"}))
    world.why("second-0", "WaitingForCapacity")
    assert not world.node_of("second-0")
    assert not world.node_of("second-1")
    world.remove("first-0")
    assert world.is_bound("second-0")
    assert world.is_bound("second-1")


def a_budget(name: str, app: str, least: int) -> Json:
    return {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
        "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": app}}},
    }  # fmt: skip


def a_class(name: str, value: int, policy: str = "PreemptLowerPriority") -> Json:
    return {
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value,
        "metadata": {"name": name}, "preemptionPolicy": policy,
    }  # fmt: skip


def test_more_important_pods_take_capacity_from_less_important_ones_as_far_as_budgets_allow(
    world: World,
) -> None:
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    world.make(path, a_class("high", 1000), a_class("patient", 900, "Never"))
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    world.make(budgets, a_budget("firm", "kept", 1))
    world.add_nodes(node("n1", cpu="4"))
    grace = {"terminationGracePeriodSeconds": 0}
    world.submit(pod("kept", {"labels": {"app": "kept"}}, {"cpu": "2"}, **grace))
    world.submit(pod("loses", {"labels": {"app": "loses"}}, {"cpu": "2"}, **grace))
    assert world.is_bound("kept")
    assert world.is_bound("loses")
    for name in ("kept", "loses"):
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        world.rest.merge(f"{world.pods()}/{name}/status", {"status": status})
    world.submit(pod("patient", requests={"cpu": "2"}, priorityClassName="patient"))
    world.why("patient", "WaitingForCapacity")
    world.submit(pod("high", requests={"cpu": "2"}, priorityClassName="high"))
    # Without a kubelet nothing ends the victim's processes; the API server lets go of it at once.
    assert world.is_bound("high") == "n1"
    assert world.node_of("kept") == "n1"
    assert world.rest.get(f"{world.pods()}/loses").status == 404
    world.submit(pod("second", requests={"cpu": "2"}, priorityClassName="high"))
    world.why("second", "WaitingForCapacity")
    assert world.node_of("kept") == "n1"


def test_a_gang_that_cannot_be_completed_in_time_is_evicted_as_a_whole(world: World) -> None:
    world.add_nodes(node("n1", cpu="4"), node("n2", cpu="4"))
    short = {"windlass.dev/gang-timeout": "1s"}
    pods = gang("g", 2, requests={"cpu": "4"}, annotations=short, terminationGracePeriodSeconds=0)
    world.submit(*pods)
    assert {world.is_bound("g-0"), world.is_bound("g-1")} == {"n1", "n2"}
    lost = world.node_of("g-1")
    world.submit(
        pod("theirs", requests={"cpu": "4"}, nodeName=lost, schedulerName="other"),
    )
    world.remove("g-1")
    world.submit(pods[1])
    waiting.until(
        lambda: world.rest.get(f"{world.pods()}/g-0").status == 404, "the rest of the gang is gone"
    )


def test_a_binding_that_a_policy_refuses_blocks_no_other_pod_and_leaves_no_partial_gang(
    world: World,
) -> None:
    world.add_nodes(node("n1", cpu="8"))
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
            "resources": ["pods/binding"]}  # fmt: skip
    world.make(f"{policies}ies", {
        "metadata": {"name": "not-this"},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [
            {"expression": "!object.metadata.name.endsWith('-1')", "message": "not this one"}]},
    })  # fmt: skip
    world.make(f"{policies}ybindings", {
        "metadata": {"name": "not-this"},
        "spec": {"policyName": "not-this", "validationActions": ["Deny"]},
    })  # fmt: skip
    world.submit(pod("probe-1", schedulerName="nobody"))
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "probe-1"},
               "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"}}  # fmt: skip
    waiting.until(
        lambda: (
            b"not this one"
            in world.rest.post(f"{world.pods()}/probe-1/binding", binding, dryRun="All").body
        ),
        "the policy is enforced",
    )
    short = {"windlass.dev/gang-timeout": "2s"}
    pods = gang("h", 2, requests={"cpu": "1"}, annotations=short, terminationGracePeriodSeconds=0)
    world.submit(*pods)
    assert "not this one" in world.why("h-1", "AdmissionRefused")
    world.submit(pod("later", requests={"cpu": "1"}))
    assert world.is_bound("later") == "n1"
    waiting.until(
        lambda: world.rest.get(f"{world.pods()}/h-0").status == 404, "half a gang does not stay"
    )
    world.rest.delete(f"{policies}ybindings/not-this")
    world.rest.delete(f"{policies}ies/not-this")
    world.submit(pods[0])
    assert {world.is_bound("h-0"), world.is_bound("h-1")} == {"n1"}


def test_what_keeps_a_pod_waiting_is_named_and_shown_by_describe(world: World) -> None:
    """Not capacity: another pod's label, a host port, a disruption budget, a cordon."""
    world.add_nodes(node("n1"))
    host = "kubernetes.io/hostname"
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": host}]}}  # fmt: skip
    web, port = {"labels": {"app": "web"}}, [{"containerPort": 80, "hostPort": 80}]
    taken = pod("first", web, {"cpu": "7"}, affinity=apart)
    taken["spec"]["containers"][0]["ports"] = port
    world.submit(taken)
    assert world.is_bound("first") == "n1"
    budget = {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "keep"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}},
    }  # fmt: skip
    world.make("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
    wants_port = pod("port", requests={"cpu": "100m"})
    wants_port["spec"]["containers"][0]["ports"] = port
    above = pod("above", requests={"cpu": "4"}, priorityClassName="system-cluster-critical")
    world.submit(pod("second", web, {"cpu": "100m"}, affinity=apart), wants_port, above)
    told = world.why("second", "WaitingForTopology")
    assert f"anti-affinity ({host}) excludes it" in told
    world.why("port", "WaitingForCapacity", words="host port 80 is in use")
    world.why("above", "WaitingForCapacity", words="PodDisruptionBudgets do not allow")

    def shown() -> list[str]:
        found = world.rest.get("/api/v1/namespaces/default/events").json["items"]
        about = [each for each in found if each["involvedObject"]["name"] == "second"]
        return [each["message"] for each in about if each["reason"] == "FailedScheduling"]

    waiting.until(shown, "an event says why")
    assert told in shown()
    # As the cluster itself does after `kubectl cordon`.
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    spec = {"spec": {"unschedulable": True, "taints": [taint]}}
    assert world.rest.merge("/api/v1/nodes/n1", spec).status == 200
    world.submit(pod("later", requests={"cpu": "8"}))
    world.why("later", "WaitingForCapacity", words="node n1 is cordoned")
    world.rest.delete("/apis/policy/v1/namespaces/default/poddisruptionbudgets/keep")


@pytest.mark.parametrize("mode", ["Indexed", "NonIndexed"])
def test_a_job_whose_pods_run_at_once_is_a_gang_by_itself(world: World, mode: str) -> None:
    world.add_nodes(node("n1", cpu="3"))
    template = pod("", requests={"cpu": "1"}, restartPolicy="Never")
    job = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "four"},
        "spec": {
            "completionMode": mode, "parallelism": 4, "completions": 4,
            "template": {"spec": template["spec"]},
        },
    }  # fmt: skip
    world.make("/apis/batch/v1/namespaces/default/jobs", job)

    def pods() -> list[Json]:
        found: list[Json] = world.rest.get(world.pods(), labelSelector="job-name=four").json[
            "items"
        ]
        return found

    waiting.until(lambda: len(pods()) == 4, "the Job has made its pods")
    world.why(pods()[0]["metadata"]["name"], "Impossible")
    assert not any(each["spec"].get("nodeName") for each in pods())
    world.add_nodes(node("n2", cpu="1"))
    waiting.until(lambda: all(p["spec"].get("nodeName") for p in pods()), "all are bound")
    world.rest.delete(
        "/apis/batch/v1/namespaces/default/jobs/four", {"propagationPolicy": "Foreground"}
    )
