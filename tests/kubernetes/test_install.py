"""`windlass install` on a real control plane: what it makes, what it changes, what it leaves."""

from __future__ import annotations

import datetime
import json
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness import other_version
from tests.harness.control_plane import ControlPlane
from tests.harness.waiting import until
from tests.kubernetes.conftest import Cli, add_default_class
from windlass.cli.lib import exit_codes
from windlass.install import apply, certificates, names, options
from windlass.install.manifests import monitoring, policies, render
from windlass.kinds.values import times

pytestmark = pytest.mark.kubernetes

SYSTEM = f"/api/v1/namespaces/{names.SYSTEM}"


@pytest.fixture(scope="module")
def plane(kubernetes_binaries: Path) -> Iterator[ControlPlane]:
    with ControlPlane.start() as started:
        add_default_class(started)
        yield started


@pytest.fixture
def cli(plane: ControlPlane) -> Cli:
    return Cli(plane.kubeconfig)


def installed(cli: Cli, *more: str) -> dict[str, dict[str, int]]:
    """Counts by part. Nothing runs pods here, so install does not wait for them."""
    told = cli.json("install", "--no-wait", *more)
    return {part.pop("part"): part for part in told["parts"]}


def test_what_is_rendered_is_valid_and_complete(cli: Cli, plane: ControlPlane) -> None:
    """The API server itself judges every field of every object."""
    listed = list(yaml.safe_load_all(cli("install", "--dry-run").out))
    installed(cli)
    for obj in listed:
        path = apply.path_of(obj)
        answer = plane.rest.request(
            "PATCH", path, obj, content_type="application/apply-patch+yaml",
            fieldManager="judge", force="true", dryRun="All", fieldValidation="Strict",
        )  # fmt: skip
        assert answer.status == 200, (apply.title(obj), answer.summary)


def test_the_second_time_changes_nothing(cli: Cli) -> None:
    installed(cli)
    again = installed(cli)
    assert {outcome for counts in again.values() for outcome in counts} == {"unchanged"}


def test_managed_fields_of_a_run_are_kept_only_for_server_side_apply(
    cli: Cli, plane: ControlPlane
) -> None:
    installed(cli)
    runs = "/apis/windlass.dev/v1alpha1/namespaces/default/runs"
    body = {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": "plain"},
        "spec": {"suspend": True, "roles": [{"command": ["true"]}]},
    }  # fmt: skip

    def is_in_force() -> bool:
        tried = plane.rest.request("POST", runs, body, dryRun="All")
        return tried.status == 201 and "managedFields" not in tried.json["metadata"]

    until(is_in_force, "the policy is in force")
    assert plane.rest.post(runs, body).status == 201
    for path, change in (
        (f"{runs}/plain/status", {"status": {"phase": "Queued"}}),
        (f"{runs}/plain", {"spec": {"suspend": False}}),
    ):
        changed = plane.rest.merge(path, change)
        assert changed.status == 200, changed.summary
        assert "managedFields" not in changed.json["metadata"]
    applied = body | {"metadata": {"name": "applied"}}
    for held in (True, False):
        role = {"name": "worker", "command": ["true"]}
        applied["spec"] = {"suspend": held, "roles": [role]}
        answer = plane.rest.request(
            "PATCH", f"{runs}/applied", applied, content_type="application/apply-patch+yaml",
            fieldManager="judge",
        )  # fmt: skip
        assert answer.status in (200, 201), answer.summary
    (managed,) = answer.json["metadata"]["managedFields"]
    assert (managed["manager"], managed["operation"]) == ("judge", "Apply")


def test_monitoring_installs_what_prometheus_and_grafana_read_and_none_removes_it(
    cli: Cli, plane: ControlPlane
) -> None:
    installed(cli)
    reader = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/windlass-metrics-reader"
    policy = f"/apis/networking.k8s.io/v1/namespaces/{names.SYSTEM}/networkpolicies"
    assert plane.rest.get(reader).status == 404
    closed = plane.rest.get(f"{policy}/{names.SCHEDULER}").json["spec"]
    assert (closed["policyTypes"], closed.get("ingress", [])) == (["Ingress"], [])
    without = installed(cli, "--monitoring", "watch/prometheus")["monitoring"]
    assert without["absent"] == 4, "no Prometheus Operator here"
    assert plane.rest.get(reader).json["subjects"] == [
        {"kind": "ServiceAccount", "namespace": "watch", "name": "prometheus"}
    ]
    (rule,) = plane.rest.get(f"{policy}/{names.SCHEDULER}").json["spec"]["ingress"]
    assert rule["ports"] == [{"port": "https-metrics", "protocol": "TCP"}]
    _add_operator(plane)
    again = installed(cli)["monitoring"]
    assert (again["created"], again["unchanged"]) == (4, 4)
    operator = f"/apis/monitoring.coreos.com/v1/namespaces/{names.SYSTEM}"
    for part in (names.SCHEDULER, names.CONTROLLERS, names.SERVER):
        (wanted,) = plane.rest.get(f"{operator}/servicemonitors/{part}").json["spec"]["endpoints"]
        service = plane.rest.get(f"{SYSTEM}/services/{part}").json
        assert wanted["port"] in {port["name"] for port in service["spec"]["ports"]}
    board = plane.rest.get(f"{SYSTEM}/configmaps/windlass-dashboard").json["data"]
    assert json.loads(board["windlass.json"])["title"] == "Windlass"
    cli.json("upgrade", "--no-wait", "--monitoring", "none")
    for path in (reader, f"{operator}/servicemonitors/{names.SERVER}",
                 f"{operator}/prometheusrules/windlass"):  # fmt: skip
        assert plane.rest.get(path).status == 404, path
    assert "NAMESPACE/NAME" in cli.fails("install", "--dry-run", "--monitoring", "x").err


def _add_operator(plane: ControlPlane) -> None:
    """The kinds of the Prometheus Operator; no operator runs."""
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    loose = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for kind in monitoring.OPERATOR:
        plural = f"{kind.lower()}s"
        version = {
            "name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": loose},
        }  # fmt: skip
        body = {
            "metadata": {"name": f"{plural}.monitoring.coreos.com"},
            "spec": {
                "group": "monitoring.coreos.com", "scope": "Namespaced", "versions": [version],
                "names": {"kind": kind, "plural": plural},
            },
        }  # fmt: skip
        made = plane.rest.post(crds, body)
        assert made.status == 201, made.summary
        listed = f"/apis/monitoring.coreos.com/v1/{plural}"
        until(lambda path=listed: plane.rest.get(path).status == 200, f"{plural} are served")


def test_a_queue_that_was_changed_and_a_lease_that_is_held_stay(
    cli: Cli, plane: ControlPlane
) -> None:
    installed(cli)
    queue = "/apis/windlass.dev/v1alpha1/queues/default"
    assert plane.rest.merge(queue, {"spec": {"weight": 3}}).status == 200
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{names.SYSTEM}/leases/windlass-scheduler"
    assert plane.rest.merge(lease, {"spec": {"holderIdentity": "me"}}).status == 200
    installed(cli, "--pull-secret", "mine")
    assert plane.rest.get(queue).json["spec"]["weight"] == 3
    assert plane.rest.get(lease).json["spec"]["holderIdentity"] == "me"


def test_options_stay_when_they_are_not_named_again(cli: Cli, plane: ControlPlane) -> None:
    installed(cli, "--image", "registry.example/windlass:mine", "--api-address", "10.0.0.1:6443")
    installed(cli)
    path = f"/apis/apps/v1/namespaces/{names.SYSTEM}/deployments/{names.SCHEDULER}"
    (container,) = plane.rest.get(path).json["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/windlass:mine"
    assert {"name": "KUBERNETES_SERVICE_HOST", "value": "10.0.0.1"} in container["env"]


def test_where_the_ledger_is_stays_in_its_secret(cli: Cli, plane: ControlPlane) -> None:
    installed(cli, "--ledger", "secret:books/address")
    path = f"/apis/apps/v1/namespaces/{names.SYSTEM}/statefulsets/{names.SERVER}"
    (container,) = plane.rest.get(path).json["spec"]["template"]["spec"]["containers"]
    told = {each["name"]: each.get("valueFrom") for each in container["env"]}
    assert told["WINDLASS_LEDGER"] == {"secretKeyRef": {"name": "books", "key": "address"}}
    done = cli.fails("install", "--no-wait", "--ledger", "postgresql://me:secret@db/books")
    assert done.code == 2
    assert "secret:NAME/KEY" in done.err


SHARED = (
    "--ledger", "secret:books/address", "--storage-secret", "keys",
    "--storage", "s3://windlass/cluster?endpoint=https://storage.example:9000",
)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--replicas", "2"), "--replicas 2 needs --ledger (PostgreSQL) and --storage"),
        (("--replicas", "2", *SHARED[:2]), "--replicas 2 needs --ledger"),
        (("--replicas", "2", *SHARED[2:]), "--storage needs --ledger"),
        (("--replicas", "none"), "not a number from 1 to 9"),
        (SHARED[:4], "belong together"),
        (
            (*SHARED[:5], "s3://windlass?key=mine"),
            "not a parameter of s3:// (endpoint, region, style)",
        ),
    ],
)
def test_more_servers_need_a_database_and_storage(given: tuple[str, ...], told: str) -> None:
    done = Cli(Path("/nowhere")).fails("install", "--dry-run", *given)
    assert done.code == 2
    assert told in " ".join(done.err.split())


def test_servers_that_share_storage_keep_nothing_and_go_one_at_a_time(
    kubernetes_binaries: Path,
) -> None:
    with ControlPlane.start(controllers=False) as bare:
        cli = Cli(bare.kubeconfig)  # no storage class is needed
        installed(cli, "--replicas", "2", *SHARED)
        apps = f"/apis/apps/v1/namespaces/{names.SYSTEM}"
        assert bare.rest.get(f"{apps}/statefulsets/{names.SERVER}").status == 404
        spec = bare.rest.get(f"{apps}/deployments/{names.SERVER}").json["spec"]
        assert spec["replicas"] == 2
        volumes = {each["name"]: each for each in spec["template"]["spec"]["volumes"]}
        assert volumes["keys"]["secret"]["secretName"] == "keys"
        assert not [each for each in volumes.values() if "persistentVolumeClaim" in each]
        budgets = f"/apis/policy/v1/namespaces/{names.SYSTEM}/poddisruptionbudgets/{names.SERVER}"
        assert bare.rest.get(budgets).json["spec"]["maxUnavailable"] == 1
        again = installed(cli)
        assert {outcome for counts in again.values() for outcome in counts} == {"unchanged"}
        elsewhere = cli.fails("install", "--no-wait", "--storage", "s3://another")
        assert (elsewhere.code, "does not move them" in elsewhere.err) == (5, True)
        cli.json("uninstall", "--yes")
        assert bare.rest.get(f"{apps}/deployments/{names.SERVER}").status == 404


def test_another_size_of_a_volume_that_is_there_is_refused_with_the_remedy(
    cli: Cli, plane: ControlPlane
) -> None:
    installed(cli)
    until(lambda: plane.rest.get(names.CLAIM_PATH).status == 200, "its claim is there")
    bound = {"status": {"phase": "Bound"}}
    assert plane.rest.merge(f"{names.CLAIM_PATH}/status", bound).status == 200
    done = cli.fails("install", "--no-wait", "--storage-size", "30Gi")
    assert done.code == 5
    assert "PersistentVolumeClaim" in done.err


def test_an_upgrade_removes_what_no_version_needs_any_more_and_rotates(
    cli: Cli, plane: ControlPlane
) -> None:
    installed(cli)
    before = plane.rest.get(f"{SYSTEM}/secrets/{names.AUTHORITY}").json["data"]
    old = {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": names.metadata("of-yesterday", "settings", names.SYSTEM),
    }  # fmt: skip
    mine = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "of-somebody"}}
    for body in (old, mine):
        assert plane.rest.post(f"{SYSTEM}/configmaps", body).status == 201
    foreseen = cli.json("upgrade", "--dry-run", "--image", "registry.example/windlass:next")
    assert foreseen["remove"] == ["ConfigMap/of-yesterday"]
    assert foreseen["create"] == []
    assert f"Deployment/{names.SCHEDULER}" in foreseen["change"]
    assert cli.json("upgrade", "--dry-run")["change"] == []
    assert plane.rest.get(f"{SYSTEM}/configmaps/of-yesterday").status == 200, "nothing was done"
    cli.json("upgrade", "--no-wait", "--rotate-authority")
    assert plane.rest.get(f"{SYSTEM}/configmaps/of-yesterday").status == 404
    assert plane.rest.get(f"{SYSTEM}/configmaps/of-somebody").status == 200
    after = plane.rest.get(f"{SYSTEM}/secrets/{names.AUTHORITY}").json["data"]
    assert after["ca.crt"] != before["ca.crt"]
    service = plane.rest.get(
        "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.platform.windlass.dev"
    ).json
    assert service["spec"]["caBundle"] == after["bundle.crt"]


def test_a_run_that_was_taken_before_a_rule_came_goes_on_after_the_upgrade(
    cli: Cli, plane: ControlPlane
) -> None:
    installed(cli)
    runs = "/apis/windlass.dev/v1alpha1/namespaces/default/runs"
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/runs.windlass.dev"
    before = plane.rest.get(path).json
    schema = before["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    roles = schema["properties"]["spec"]["properties"]["roles"]["items"]
    del roles["properties"]["resources"]["x-kubernetes-validations"]
    assert plane.rest.request("PUT", path, before).status == 200

    def is_taken(name: str, **how: str) -> bool:
        role = {"command": ["true"], "resources": {"memory": "1Gi", "shm": "2Gi"}}
        body = {
            "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": name},
            "spec": {"suspend": True, "roles": [role]},
        }  # fmt: skip
        return plane.rest.request("POST", runs, body, **how).status == 201

    until(lambda: is_taken("old"), "it is taken")
    installed(cli)
    until(lambda: not is_taken("new", dryRun="All"), "another is refused")
    for part, change in (
        ("/status", {"status": {"phase": "Queued"}}),
        ("", {"spec": {"stop": True}}),
    ):
        answer = plane.rest.merge(f"{runs}/old{part}", change)
        assert answer.status == 200, answer.summary


def test_uninstalling_keeps_objects_of_users_unless_asked(cli: Cli, plane: ControlPlane) -> None:
    installed(cli)
    runs = "/apis/windlass.dev/v1alpha1/namespaces/default/runs"
    body = {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Run",
        "metadata": {"name": "kept", "finalizers": ["windlass.dev/ledger"]},
        "spec": {"roles": [{"command": ["true"]}]},
    }  # fmt: skip
    assert plane.rest.post(runs, body).status == 201
    assert plane.rest.post("/api/v1/namespaces", {"metadata": {"name": "team"}}).status == 201
    theirs = "/apis/windlass.dev/v1alpha1/namespaces/team/runs"
    for name in ("deleted", "stays"):
        body["metadata"] = {"name": name, "finalizers": ["windlass.dev/ledger", "example.org/mine"]}
        assert plane.rest.post(theirs, body).status == 201
    assert cli.json("uninstall", "--yes")["released"] == 3
    left = plane.rest.get(f"{theirs}/deleted").json["metadata"]["finalizers"]
    assert left == ["example.org/mine"], "what others keep stays theirs"
    assert plane.rest.get(f"{runs}/kept").status == 200
    assert plane.rest.get("/apis/windlass.dev/v1alpha1/queues/default").status == 200
    listed = render.parts(options.Options(), render.UNMADE)
    ours, data = render.for_removal(listed)
    left = [obj for obj in ours if plane.rest.get(apply.path_of(obj)).status != 404]
    assert [apply.title(obj) for obj in left] == []
    members = [obj for obj in data if obj["kind"] == "ClusterRole"]
    assert "windlass-member" in {obj["metadata"]["name"] for obj in members}
    for obj in (*members, *policies.changes()):
        assert plane.rest.get(apply.path_of(obj)).status == 200, "it protects what stays"
    none = {"metadata": {"finalizers": None}}
    for name in ("deleted", "stays"):
        assert plane.rest.merge(f"{theirs}/{name}", none).status == 200
    assert plane.rest.delete(f"{theirs}/deleted").status == 200
    until(lambda: plane.rest.get(f"{theirs}/deleted").status == 404, "a run can be deleted")
    assert plane.rest.delete("/api/v1/namespaces/team").status == 200
    until(lambda: plane.rest.get("/api/v1/namespaces/team").status == 404, "a team can, too")
    installed(cli)
    assert plane.rest.get(f"{runs}/kept").status == 200, "it is there again as it was"
    cli.json("uninstall", "--yes", "--delete-data")
    kind = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/runs.windlass.dev"
    until(lambda: plane.rest.get(kind).status == 404, "runs are gone")
    for obj in data:
        found = plane.rest.get(apply.path_of(obj))
        gone = found.status == 404 or found.json["metadata"].get("deletionTimestamp")
        assert gone, apply.title(obj)


def test_upgrading_what_is_not_there_says_so(kubernetes_binaries: Path) -> None:
    with ControlPlane.start(controllers=False) as bare:
        done = Cli(bare.kubeconfig).fails("upgrade", "--json")
        assert done.code == 3
        assert "not installed" in json.loads(done.err)["error"]["message"]


def test_an_installation_that_does_not_come_up_says_which_part_and_what_its_pods_complain_of(
    plane: ControlPlane, cli: Cli
) -> None:
    installed(cli)
    pods = until(lambda: plane.rest.get(f"{SYSTEM}/pods").json["items"], "pods")
    for pod in pods:
        # As a kubelet that cannot have the image; nothing runs pods here.
        waits = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
        told = {"name": "main", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
        status = {"containerStatuses": [{**told, "state": waits}]}
        path = f"{SYSTEM}/pods/{pod['metadata']['name']}/status"
        assert plane.rest.merge(path, {"status": status}).status == 200
    done = cli.fails("install", "--timeout", "2s")
    assert done.code == exit_codes.TIMED_OUT
    assert "0 of " in done.err
    assert "ImagePullBackOff: no such image" in done.err
    assert "repeat the command" in done.err


@pytest.mark.parametrize(("command", "part"), [("install", "kinds"), ("upgrade", "settings")])
def test_what_ctrl_c_interrupted_the_same_command_finishes(
    plane: ControlPlane, cli: Cli, command: str, part: str
) -> None:
    words = (command, "--no-wait", "--image", f"registry.example/windlass:{command}")
    done = cli.interrupted(part, *words)
    assert done.code == 130, done.out
    assert "Repeat the command to finish it" in done.out
    cli.json(*words)
    for each in render.parts(options.Options(image=words[-1]), render.UNMADE):
        for obj in each.objects:
            assert plane.rest.get(apply.path_of(obj)).status == 200, apply.title(obj)
    path = f"/apis/apps/v1/namespaces/{names.SYSTEM}/deployments/{names.SCHEDULER}"
    (container,) = plane.rest.get(path).json["spec"]["template"]["spec"]["containers"]
    assert container["image"] == words[-1]


# --- the doctor -----------------------------------------------------------------------------------


def diagnosis(cli: Cli) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in cli.json("doctor")["cluster"]}


def test_the_doctor_says_what_is_not_there_and_what_would_help(kubernetes_binaries: Path) -> None:
    with ControlPlane.start(users={"alice": []}) as bare:
        cli = Cli(bare.kubeconfig)
        found = diagnosis(cli)
        assert {name: check["state"] for name, check in found.items()} == {
            "version": "ok", "clock": "ok", "permissions": "ok", "parts": "missing",
            "devices": "ok", "admission": "ok", "storage": "missing",
        }  # fmt: skip
        assert found["storage"]["found"] == "no storage class is the default"
        assert "provisioner" in found["storage"]["remedy"]
        add_default_class(bare)
        assert diagnosis(cli)["storage"]["state"] == "ok"
        alice = Cli(bare.token_kubeconfig("alice"))
        unseen = diagnosis(alice)["devices"]
        assert (unseen["state"], unseen["found"]) == ("limited", "you may not look at nodes")
        _refuse_pods(bare)
        until(lambda: diagnosis(cli)["admission"]["state"] != "ok", "pods would be refused")
        assert "no pods here today" in diagnosis(cli)["admission"]["found"]
        installed(cli)
        node = {"metadata": {"name": "n1", "labels": {"nvidia.com/gpu.present": "true"}}}
        assert bare.rest.post("/api/v1/nodes", node).status == 201
        found = diagnosis(cli)
        assert found["admission"]["state"] == "missing"
        assert "windlass-scheduler: " in found["admission"]["found"]
        assert "no pods here today" in found["admission"]["found"]
        assert "n1" in found["devices"]["found"]
        assert "device plug-in" in found["devices"]["remedy"]
        assert "Deployment/windlass-scheduler: 0 of 2 ready" in found["parts"]["found"]
        assert found["certificate"]["state"] == "ok"
        lesser = diagnosis(alice)
        assert lesser["devices"] == found["devices"], "once it is installed everybody sees nodes"
        assert {name for name, check in lesser.items() if check["state"] == "ok"} == {
            "version", "clock",
        }, "what she may not see is not called well"  # fmt: skip
        for name in ("permissions", "parts", "certificate", "admission", "storage", "objects",
                     "leaders"):  # fmt: skip
            assert lesser[name]["state"] == "limited"
            assert "you may not" in lesser[name]["found"]
        assert "Ask a cluster administrator" in lesser["permissions"]["remedy"]


def test_the_doctor_and_install_know_clusters_that_are_too_old(plane: ControlPlane) -> None:
    with other_version.of_version(plane, 1, 35) as lacking:
        found = diagnosis(Cli(lacking.kubeconfig))["version"]
        assert (found["state"], found["found"]) == ("limited", "v1.35.9")
        assert "stay without a user" in found["meaning"]
    with other_version.of_version(plane, 1, 33) as old:
        cli = Cli(old.kubeconfig)
        found = diagnosis(cli)["version"]
        assert (found["state"], found["found"]) == ("missing", "v1.33.9")
        assert "1.34" in found["meaning"]
        old.writes.clear()
        assert "needs 1.34 or newer" in cli.fails("install", "--no-wait").err
        assert old.writes == [], "nothing was changed"


@pytest.mark.parametrize("seconds", [600, -600], ids=["ahead", "behind"])
def test_the_doctor_tells_by_how_much_the_clocks_differ(plane: ControlPlane, seconds: int) -> None:
    with other_version.of_time(plane, seconds) as other:
        found = diagnosis(Cli(other.kubeconfig))["clock"]
    assert found["state"] == "limited"
    told = re.fullmatch(r"this machine and the API server differ by (\d+) s", found["found"])
    assert told, found
    assert 570 <= int(told[1]) <= 630
    assert "Synchronise the clocks" in found["remedy"]


def _refuse_pods(plane: ControlPlane) -> None:
    group = "/apis/admissionregistration.k8s.io/v1"
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "false", "message": "no pods here today"}],
    }
    for path, body in (
        ("validatingadmissionpolicies", spec),
        (
            "validatingadmissionpolicybindings",
            {"policyName": "none", "validationActions": ["Deny"]},
        ),
    ):
        made = plane.rest.post(f"{group}/{path}", {"metadata": {"name": "none"}, "spec": body})
        assert made.status == 201, made.summary


# --- certificates: no cluster needed --------------------------------------------------------------

NOW = times.now()
NAMES = ["windlass-server.windlass-system.svc", "10.0.0.7"]


def made(**more: Any) -> render.Certificates:
    return certificates.ensure(None, NAMES, NOW, **more)


def test_a_certificate_that_is_good_is_kept() -> None:
    first = made()
    assert certificates.ensure(first, NAMES, NOW + datetime.timedelta(days=30)) == first


@pytest.mark.parametrize(
    ("names_now", "days"), [([*NAMES, "10.0.0.8"], 0), (NAMES, 200)], ids=["new name", "old"]
)
def test_a_certificate_is_renewed_by_the_same_authority(names_now: list[str], days: int) -> None:
    first = made()
    later = certificates.ensure(first, names_now, NOW + datetime.timedelta(days=days))
    assert (later.authority, later.bundle) == (first.authority, first.bundle)
    assert later.certificate != first.certificate


def test_with_a_new_authority_the_old_one_is_trusted_until_the_next_time() -> None:
    first = made()
    second = certificates.ensure(first, NAMES, NOW, rotate=True)
    assert second.authority != first.authority
    assert second.bundle == second.authority + first.authority
    third = certificates.ensure(second, NAMES, NOW, rotate=True)
    assert first.authority not in third.bundle
    ssl.create_default_context(cadata=second.bundle)
