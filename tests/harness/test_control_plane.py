"""The control plane of the tests: isolated, complete, and gone when it is stopped."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.contract.objects import ok, pod
from tests.harness.control_plane import ControlPlane
from tests.harness.processes import StartError
from tests.harness.rest import Rest, from_kubeconfig
from tests.harness.waiting import until

pytestmark = pytest.mark.kubernetes


def whoami(api: Rest) -> dict[str, object]:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    review = ok(api.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", body), 201)
    user: dict[str, object] = review["status"]["userInfo"]
    return user


def test_failed_start_shows_the_log_and_leaves_nothing(
    kubernetes_binaries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(StartError, match="no-such-flag"):
        ControlPlane.start(apiserver_flags=["--no-such-flag"])
    assert list(tmp_path.iterdir()) == []


def test_users_by_token_and_by_certificate(control_plane: ControlPlane) -> None:
    alice = from_kubeconfig(control_plane.token_kubeconfig("alice"))
    assert whoami(alice)["username"] == "alice"
    assert alice.get("/api/v1/secrets").status == 403
    carol = from_kubeconfig(control_plane.certificate_kubeconfig("carol", ["team-c"]))
    assert whoami(carol)["username"] == "carol"
    assert "team-c" in str(whoami(carol)["groups"])


def test_aggregation_layer_is_on(control_plane_rest: Rest) -> None:
    path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
    data = ok(control_plane_rest.get(path))["data"]
    assert data["requestheader-client-ca-file"].startswith("-----BEGIN CERTIFICATE")
    assert data["requestheader-username-headers"] == '["X-Remote-User"]'


def test_restart_keeps_objects_and_a_pause_only_delays(kubernetes_binaries: Path) -> None:
    with ControlPlane.start(controllers=False) as plane:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kept"}}
        ok(plane.rest.post("/api/v1/namespaces", body), 201)
        plane.restart_apiserver()
        assert plane.rest.get("/api/v1/namespaces/kept").status == 200
        plane.pause()
        hasty = Rest(plane.url, plane.rest.tls, plane.admin_token, timeout=0.3)
        with pytest.raises(TimeoutError):
            hasty.get("/api/v1/namespaces/kept")
        plane.resume()
        assert plane.rest.get("/api/v1/namespaces/kept").status == 200
    assert not plane.apiserver.alive
    assert not plane.etcd.alive
    assert not plane.directory.exists()


def test_durable_etcd_writes_to_the_given_folder(kubernetes_binaries: Path, tmp_path: Path) -> None:
    with ControlPlane.start(durable=True, data_dir=tmp_path / "etcd", controllers=False) as plane:
        assert "--unsafe-no-fsync" not in plane.etcd.command
        assert list((tmp_path / "etcd").rglob("*.wal"))
    assert (tmp_path / "etcd").exists()


def test_scheduler_binds_and_kwok_runs(kubernetes_binaries: Path) -> None:
    with ControlPlane.start() as plane:
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "n1"},
            "status": {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "10"}},
        }
        ok(plane.rest.post("/api/v1/nodes", node), 201)
        plane.start_kwok()
        plane.start_scheduler()
        ok(plane.rest.post("/api/v1/namespaces/default/pods", pod("a")), 201)
        path = "/api/v1/namespaces/default/pods/a"
        until(lambda: ok(plane.rest.get(path))["spec"].get("nodeName") == "n1", "bound")
        until(lambda: ok(plane.rest.get(path))["status"]["phase"] == "Running", "running")
