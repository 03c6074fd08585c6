"""What `windlass install` and `upgrade` check before they change anything, and the way back."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.control_plane import ControlPlane
from tests.harness.waiting import until
from tests.kubernetes.conftest import Cli, add_default_class
from tests.kubernetes.test_install import SYSTEM, diagnosis, installed
from windlass.install import image_check, names

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def plane(kubernetes_binaries: Path) -> Iterator[ControlPlane]:
    with ControlPlane.start() as started:
        add_default_class(started)
        yield started


@pytest.fixture
def cli(plane: ControlPlane) -> Cli:
    return Cli(plane.kubeconfig)


def server_image(plane: ControlPlane) -> str:
    """Of the pod that the StatefulSet controller has made; "": there is none."""
    found = plane.rest.get(f"{SYSTEM}/pods/{names.SERVER}-0").json
    containers = found.get("spec", {}).get("containers") or [{"image": ""}]
    return str(containers[0]["image"])


@pytest.mark.parametrize("before", ["Parallel", "OrderedReady"])
def test_a_server_that_never_became_ready_is_replaced_by_the_next_installation(
    cli: Cli, plane: ControlPlane, before: str
) -> None:
    """No node runs pods here: none of these ever becomes ready. `OrderedReady`: as installed by
    versions that left such a pod for ever."""
    bad, good = (f"registry.example/{word}:{before.lower()}" for word in ("bad", "good"))
    installed(cli, "--image", bad)
    path = f"/apis/apps/v1/namespaces/{names.SYSTEM}/statefulsets/{names.SERVER}"
    if before == "OrderedReady":
        old = plane.rest.get(path).json
        old["spec"]["podManagementPolicy"] = before
        old["metadata"] = {key: old["metadata"][key] for key in ("name", "labels")}
        plane.rest.delete(path)
        until(lambda: plane.rest.get(path).status == 404, "it is gone")
        assert plane.rest.post(path.rpartition("/")[0], old).status == 201
    until(lambda: server_image(plane) == bad, "its pod waits for the image")
    installed(cli, "--image", good)
    until(lambda: server_image(plane) == good, "its pod is replaced")
    assert plane.rest.get(path).json["spec"]["podManagementPolicy"] == "Parallel"


def test_an_image_that_no_node_can_pull_is_found_before_a_component_changes(
    cli: Cli, plane: ControlPlane
) -> None:
    installed(cli, "--image", "registry.example/windlass:works")
    pod = f"{SYSTEM}/pods/{image_check.NAME}"
    for state, told in (
        ({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
         "cannot be used: ImagePullBackOff: no such image"),
        ({"terminated": {"exitCode": 127, "message": "exec format error"}},
         "does not start Windlass: exit code 127: exec format error"),
    ):  # fmt: skip
        with concurrent.futures.ThreadPoolExecutor(1) as running:
            words = ("install", "--image", "registry.example/windlass:none", "--timeout", "2m")
            done = running.submit(cli.fails, *words)
            until(lambda: plane.rest.get(pod).status == 200, "the image is tried")
            status = {"name": "server", "image": "x", "imageID": "", "ready": False,
                      "restartCount": 0, "state": state}  # fmt: skip
            answer = plane.rest.merge(f"{pod}/status", {"status": {"containerStatuses": [status]}})
            assert answer.status == 200, answer.summary
            assert told in " ".join(done.result().err.split())
        until(lambda: plane.rest.get(pod).status == 404, "nothing of the check is left")
    until(lambda: server_image(plane).endswith(":works"), "the server is as it was")
    path = f"/apis/apps/v1/namespaces/{names.SYSTEM}/deployments/{names.SCHEDULER}"
    (container,) = plane.rest.get(path).json["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/windlass:works"


def test_one_command_returns_to_the_options_that_worked(kubernetes_binaries: Path) -> None:
    with ControlPlane.start(controllers=False) as bare:
        add_default_class(bare)
        cli = Cli(bare.kubeconfig)
        installed(cli, "--image", "registry.example/windlass:first")
        assert "nothing to return to" in cli.fails("upgrade", "--no-wait", "--rollback").err
        _report_ready(bare)
        for bad in ("bad", "worse"):  # the first of these was never ready: no step returns to it
            installed(cli, "--image", f"registry.example/windlass:{bad}", "--pull-secret", "none")
        done = cli.fails("install", "--timeout", "1s")
        assert "Until it is: waiting runs do not start" in " ".join(done.err.split())
        assert "windlass upgrade --rollback" in done.err
        cli.json("upgrade", "--no-wait", "--rollback")
        path = f"/apis/apps/v1/namespaces/{names.SYSTEM}/statefulsets/{names.SERVER}"
        spec = bare.rest.get(path).json["spec"]["template"]["spec"]
        assert spec["containers"][0]["image"] == "registry.example/windlass:first"
        assert "imagePullSecrets" not in spec
        both = cli.fails("upgrade", "--rollback", "--image", "x")
        assert (both.code, "takes no other option" in both.err) == (2, True)


def _report_ready(plane: ControlPlane) -> None:
    """In the place of the controllers of workloads."""
    apps = f"/apis/apps/v1/namespaces/{names.SYSTEM}"
    agents = f"/apis/apps/v1/namespaces/{names.NODES}/daemonsets/{names.AGENT}"
    for path in (f"{apps}/deployments/{names.SCHEDULER}", f"{apps}/deployments/{names.CONTROLLERS}",
                 f"{apps}/statefulsets/{names.SERVER}", agents):  # fmt: skip
        found = plane.rest.get(path).json
        count = found["spec"].get("replicas", 0)
        status = {"observedGeneration": found["metadata"]["generation"]}
        if "replicas" in found["spec"]:
            status |= dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), count)
        answer = plane.rest.merge(f"{path}/status", {"status": status})
        assert answer.status == 200, answer.summary


def test_without_a_storage_class_nothing_is_created_and_an_unbound_claim_gets_another(
    kubernetes_binaries: Path,
) -> None:
    with ControlPlane.start(users={"alice": []}) as bare:
        cli = Cli(bare.kubeconfig)
        done = cli.fails("install", "--no-wait")
        assert "Nothing was changed: no storage class is the default" in done.err
        add_default_class(bare)
        done = cli.fails("install", "--no-wait", "--storage-class", "fast")
        assert "there is no storage class fast" in done.err
        assert "--storage-class NAME (usual)" in " ".join(done.err.split())
        lesser = Cli(bare.token_kubeconfig("alice")).fails("install", "--no-wait")
        assert (lesser.code, "Nothing was changed: you may not" in lesser.err) == (7, True)
        assert bare.rest.get(SYSTEM).status == 404, "nothing was created"
        bare.rest.post("/apis/storage.k8s.io/v1/storageclasses", {
            "metadata": {"name": "fast"}, "provisioner": "test.windlass.dev/nobody"})  # fmt: skip
        installed(cli)

        def claim_class() -> str:
            found = bare.rest.get(names.CLAIM_PATH).json
            return str(found.get("spec", {}).get("storageClassName", ""))

        until(lambda: claim_class() == "usual", "its claim waits")
        installed(cli, "--storage-class", "fast", "--storage-size", "1Gi")
        until(lambda: claim_class() == "fast", "it was never bound: another took its place")
        bound = {"status": {"phase": "Bound"}}
        assert bare.rest.merge(f"{names.CLAIM_PATH}/status", bound).status == 200
        done = cli.fails("install", "--no-wait", "--storage-class", "usual")
        assert (done.code, "exists already" in done.err) == (5, True)


def test_the_doctor_finds_what_was_deleted_scaled_or_edited_after_the_installation(
    cli: Cli, plane: ControlPlane
) -> None:
    installed(cli)
    found = diagnosis(cli)
    assert found["objects"] == {
        **found["objects"], "state": "ok", "found": "as windlass install writes them",
    }  # fmt: skip
    assert found["leaders"]["state"] == "missing"
    assert "scheduler" in found["leaders"]["found"], "no process runs here"
    apps = f"/apis/apps/v1/namespaces/{names.SYSTEM}"
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/windlass-controllers"
    budget = f"/apis/policy/v1/namespaces/{names.SYSTEM}/poddisruptionbudgets/{names.SCHEDULER}"
    account = f"{SYSTEM}/serviceaccounts/{names.SERVER}"
    for path in (role, budget, account):
        assert plane.rest.delete(path).status == 200
    scale = f"{apps}/deployments/{names.SCHEDULER}"
    assert plane.rest.merge(scale, {"spec": {"replicas": 0}}).status == 200
    found = diagnosis(cli)
    assert found["objects"]["state"] == "missing"
    missing, _, changed = found["objects"]["found"].partition("; changed: ")
    assert changed == f"Deployment/{names.SCHEDULER}"
    assert set(missing.removeprefix("missing: ").split(", ")) == {
        "ClusterRole/windlass-controllers", f"PodDisruptionBudget/{names.SCHEDULER}",
        f"ServiceAccount/{names.SERVER}",
    }  # fmt: skip
    assert f"Deployment/{names.SCHEDULER}: it is scaled to 0" in found["parts"]["found"]
    assert plane.rest.get(role).status == 404, "it only looked"
    cli.json("upgrade", "--no-wait")
    assert diagnosis(cli)["objects"]["state"] == "ok", "the remedy that it names"
