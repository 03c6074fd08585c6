"""What an installation leaves on a cluster, as the cluster itself sees it: lines of their own for
the requests of the deciding parts, parts that can be spared one at a time, namespaces that
refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.objects import ok
from tests.harness import rest
from tests.harness.control_plane import ControlPlane
from tests.kubernetes.conftest import Cli
from tests.kubernetes.parts import Installation
from windlass.install import names
from windlass.install.manifests import workloads

pytestmark = pytest.mark.kubernetes
Json = dict[str, Any]
APPS = f"/apis/apps/v1/namespaces/{names.SYSTEM}"
FLOWS = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"


@pytest.fixture(scope="module")
def place(
    kubernetes_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    with ControlPlane.start(users={"alice": []}) as plane:
        made = Installation(plane, tmp_path_factory.mktemp("stands"))
        made.install()
        yield made


def test_the_schedulers_requests_do_not_queue_behind_those_of_users(place: Installation) -> None:
    flow = ok(place.rest.get(f"{FLOWS}/windlass"))
    for account in (names.SCHEDULER, names.CONTROLLERS):
        place.kubeconfig(account)
        own = rest.Rest(place.plane.url, place.plane.rest.tls, place.plane.tokens[account])
        found = own.get("/api/v1/nodes").headers["X-Kubernetes-PF-FlowSchema-UID"]
        assert found == flow["metadata"]["uid"], account
    alice = rest.Rest(place.plane.url, place.plane.rest.tls, place.plane.tokens["alice"])
    theirs = alice.get("/api/v1/nodes").headers["X-Kubernetes-PF-FlowSchema-UID"]
    assert theirs != flow["metadata"]["uid"]


@pytest.mark.parametrize("part", [names.SCHEDULER, names.CONTROLLERS])
def test_two_replicas_of_each_controller_are_replaced_one_at_a_time_and_have_probes(
    place: Installation, part: str
) -> None:
    spec = ok(place.rest.get(f"{APPS}/deployments/{part}"))["spec"]
    assert spec["replicas"] == 2
    budgets = f"/apis/policy/v1/namespaces/{names.SYSTEM}/poddisruptionbudgets"
    budget = ok(place.rest.get(f"{budgets}/{part}"))["spec"]
    assert budget["maxUnavailable"] == 1
    labels = spec["template"]["metadata"]["labels"]
    assert budget["selector"]["matchLabels"].items() <= labels.items()
    (container,) = spec["template"]["spec"]["containers"]
    asked = {
        kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")
    }
    assert asked == {"liveness": "/healthz", "readiness": "/readyz"}
    spread = spec["template"]["spec"]["topologySpreadConstraints"]
    assert spread[0]["topologyKey"] == "kubernetes.io/hostname"


def test_the_server_is_one_with_a_volume_that_outlives_it(place: Installation) -> None:
    spec = ok(place.rest.get(f"{APPS}/statefulsets/{names.SERVER}"))["spec"]
    assert spec["replicas"] == 1
    (claim,) = spec["volumeClaimTemplates"]
    (container,) = spec["template"]["spec"]["containers"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounts[claim["metadata"]["name"]] in container["command"]
    assert set(spec["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
    api = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.platform.windlass.dev"
    behind = ok(place.rest.get(api))["spec"]["service"]
    assert (behind["name"], behind["namespace"]) == (names.SERVER, names.SYSTEM)


def pod_of(template: Json, account: str = "") -> Json:
    spec = {**template["spec"], **({"serviceAccountName": account} if account else {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": spec}


def test_our_pods_are_as_restricted_as_their_namespace_and_agents_have_one_of_their_own(
    place: Installation,
) -> None:
    """The API server's own Pod Security admission judges."""
    system = f"/api/v1/namespaces/{names.SYSTEM}/pods"
    for part in (f"deployments/{names.SCHEDULER}", f"deployments/{names.CONTROLLERS}",
                 f"statefulsets/{names.SERVER}"):  # fmt: skip
        template = ok(place.rest.get(f"{APPS}/{part}"))["spec"]["template"]
        assert template["spec"]["priorityClassName"] == names.PRIORITY
        template["spec"]["volumes"] = [
            each for each in template["spec"]["volumes"] if "persistentVolumeClaim" not in each
        ]
        for container in template["spec"]["containers"]:
            known = {each["name"] for each in template["spec"]["volumes"]}
            container["volumeMounts"] = [m for m in container["volumeMounts"] if m["name"] in known]
        taken = place.rest.post(system, pod_of(template), dryRun="All")
        assert taken.status == 201, (part, taken.summary)
    path = f"/apis/apps/v1/namespaces/{names.NODES}/daemonsets/{names.AGENT}"
    agent = ok(place.rest.get(path))["spec"]["template"]
    refused = place.rest.post(system, pod_of(agent, names.SERVER), dryRun="All")
    assert refused.status == 403, "what reaches into nodes is not taken here"
    assert "restricted" in refused.summary
    own = place.rest.post(f"/api/v1/namespaces/{names.NODES}/pods", pod_of(agent), dryRun="All")
    assert own.status == 201, own.summary
    (container,) = agent["spec"]["containers"]
    assert container["securityContext"]["capabilities"] == {
        "drop": ["ALL"], "add": ["DAC_READ_SEARCH"],
    }  # fmt: skip
    assert "hostPID" not in agent["spec"]
    assert "hostNetwork" not in agent["spec"]


def test_the_doctor_finds_clocks_that_differ(place: Installation, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import datetime\n"
        "from windlass.kinds.values import times\n"
        "real = times.now\n"
        "times.now = lambda: real() + datetime.timedelta(minutes=10)\n"
    )
    cli = Cli(place.plane.kubeconfig)
    cli._environment["PYTHONPATH"] = str(tmp_path)
    (clock,) = (each for each in cli.json("doctor")["cluster"] if each["name"] == "clock")
    assert clock["state"] == "limited"
    assert "differ by" in clock["found"]
    assert "Synchronise" in clock["remedy"]


def test_the_image_is_made_as_the_parts_expect_it() -> None:
    """Nothing here can build it; what pods refer to must be in it all the same."""
    text = (Path(__file__).parents[2] / "deploy/Containerfile").read_text()
    assert f"USER {workloads.USER}:{workloads.USER}" in text
    assert workloads.PYTHON == "/usr/local/bin/python3", "where the official image has it"
    assert "FROM docker.io/library/python:" in text
    for needed in (
        "busybox-static",
        "/usr/local/bin/uv",
        "--require-hashes",
        "requirements/release.txt",
    ):
        assert needed in text
