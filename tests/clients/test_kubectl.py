"""kubectl, unchanged, for Runs, Queues, Pods, Nodes and ConfigMaps."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.clients.conftest import Kubectl
from tests.contract.objects import binding, config_map, core, ok, own, pod, run
from tests.harness.rest import Rest

pytestmark = pytest.mark.kubernetes  # the binary is built with the control plane's

RUN = """\
apiVersion: windlass.dev/v1alpha1
kind: Run
metadata:
  name: train
spec:
  priority: 60
  roles:
  - name: worker
    command: [python, train.py]
"""


def make_run(rest: Rest, ns: str, name: str = "train", phase: str = "") -> None:
    ok(rest.post(own(ns, "runs"), run(name, {"queue": "support"})), 201)
    if phase:
        ok(rest.merge(own(ns, "runs", name, "status"), {"status": {"phase": phase}}))


def columns(table: str) -> list[list[str]]:
    return [line.split() for line in table.strip().splitlines()]


# --- reading ------------------------------------------------------------------------------------


def test_get_prints_the_columns_of_the_kind(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    make_run(rest, ns, phase="Queued")
    header, row = columns(kubectl("get", "runs"))
    assert header == ["NAME", "PHASE", "REASON", "QUEUE", "USER", "AGE"]
    assert row[:3] == ["train", "Queued", "support"]


def test_get_wide_has_more_columns(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    make_run(rest, ns)
    assert {"PRIORITY", "FRAMEWORK"} <= set(columns(kubectl("get", "runs", "-o", "wide"))[0])


@pytest.mark.parametrize("word", ["run", "runs", "wr", "Run", "runs.windlass.dev"])
def test_get_by_any_name_of_the_kind(kubectl: Kubectl, rest: Rest, ns: str, word: str) -> None:
    make_run(rest, ns)
    assert kubectl("get", word, "-o", "name").split() == ["run.windlass.dev/train"]


def test_get_yaml_is_the_object(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    make_run(rest, ns)
    found = yaml.safe_load(kubectl("get", "run", "train", "-o", "yaml"))
    assert found["metadata"]["name"] == "train"
    assert found["spec"] == ok(rest.get(own(ns, "runs", "train")))["spec"]


def test_get_of_nothing_says_so(kubectl: Kubectl) -> None:
    assert 'runs.windlass.dev "none" not found' in kubectl.refused("get", "run", "none")


def test_get_of_an_empty_namespace_says_so(kubectl: Kubectl) -> None:
    assert "No resources found" in kubectl.attempt("get", "runs").stderr


def test_get_by_label_field_and_page(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    for name in ("a", "b", "c"):
        ok(rest.post(core(ns, "configmaps"), config_map(name, labels={"x": name})), 201)
    assert kubectl("get", "cm", "-l", "x in (a,c)", "-o", "name").split() == [
        "configmap/a",
        "configmap/c",
    ]
    by_field = kubectl("get", "cm", "--field-selector", "metadata.name=b", "-o", "name")
    assert by_field.split() == ["configmap/b"]
    assert len(kubectl("get", "cm", "--chunk-size", "2", "-o", "name").split()) == 3


def test_get_across_namespaces(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    make_run(rest, ns)
    assert [ns, "train"] in [row[:2] for row in columns(kubectl("get", "runs", "-A"))]


def test_get_pods_prints_their_state(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    ok(rest.post(core(ns, "pods"), pod("a")), 201)
    ok(rest.post(core(ns, "pods", "a", "binding"), binding("a", "n1")), 201)
    header, row = columns(kubectl("get", "pods"))
    assert header[0] == "NAME"
    assert row[0] == "a"
    assert "Pending" in row


@pytest.fixture
def following(kubectl: Kubectl) -> Iterator[subprocess.Popen[str]]:
    process = kubectl.start("get", "runs", "--watch", "--no-headers")
    yield process
    process.kill()
    process.wait()


def test_get_watch_follows_changes(following: subprocess.Popen[str], rest: Rest, ns: str) -> None:
    make_run(rest, ns, "first")
    assert following.stdout is not None
    assert following.stdout.readline().split()[0] == "first"
    ok(rest.merge(own(ns, "runs", "first", "status"), {"status": {"phase": "Running"}}))
    assert "Running" in following.stdout.readline()
    make_run(rest, ns, "second")
    assert following.stdout.readline().split()[0] == "second"


def test_describe_shows_fields_and_events(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    make_run(rest, ns, phase="Queued")
    created = ok(rest.get(own(ns, "runs", "train")))
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "train.1"},
        "involvedObject": {
            "apiVersion": created["apiVersion"], "kind": "Run", "name": "train",
            "namespace": ns, "uid": created["metadata"]["uid"],
        },
        "reason": "WaitingForQuota", "message": "needs 4 gpu", "type": "Warning",
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    ok(rest.post(core(ns, "events"), event), 201)
    text = kubectl("describe", "run", "train")
    for expected in ("Name:", "train", "Phase:", "Queued", "WaitingForQuota", "needs 4 gpu"):
        assert expected in text


@pytest.mark.parametrize("kind", ["pod", "configmap", "node", "queue", "namespace"])
def test_describe_of_other_kinds(kubectl: Kubectl, rest: Rest, ns: str, kind: str) -> None:
    name = f"{ns}-{kind}"
    if kind == "pod":
        ok(rest.post(core(ns, "pods"), pod(name)), 201)
    elif kind == "namespace":
        name = ns
    else:
        manifest = {
            "configmap": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}",
            "node": "apiVersion: v1\nkind: Node\nmetadata: {name: %s}",
            "queue": "apiVersion: windlass.dev/v1alpha1\nkind: Queue\nmetadata: {name: %s}",
        }[kind]
        kubectl("create", "-f", "-", text=manifest % name)
    text = kubectl("describe", kind, name)
    assert "Name:" in text
    assert name in text


# --- writing ------------------------------------------------------------------------------------


def test_apply_creates_changes_and_leaves(kubectl: Kubectl) -> None:
    assert kubectl("apply", "-f", "-", text=RUN).strip() == "run.windlass.dev/train created"
    changed = RUN.replace("priority: 60", "priority: 70")
    assert "configured" in kubectl("apply", "-f", "-", text=changed)
    found = kubectl.json("get", "run", "train")
    assert (found["spec"]["priority"], found["metadata"]["generation"]) == (70, 2)
    kubectl("apply", "-f", "-", text=changed)
    assert kubectl.json("get", "run", "train") == found


def test_apply_removes_what_the_file_no_longer_has(kubectl: Kubectl) -> None:
    first = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v, gone: x}"
    kubectl("apply", "-f", "-", text=first)
    kubectl("apply", "-f", "-", text=first.replace(", gone: x", ""))
    assert kubectl.json("get", "cm", "a")["data"] == {"k": "v"}


def test_apply_of_a_core_kind_patches_it(kubectl: Kubectl) -> None:
    body = yaml.safe_dump(pod("a"))
    kubectl("apply", "-f", "-", text=body)
    assert "unchanged" in kubectl("apply", "-f", "-", text=body)
    labelled = yaml.safe_dump(pod("a", labels={"x": "1"}))
    assert "configured" in kubectl("apply", "-f", "-", text=labelled)


def test_apply_names_an_unknown_field(kubectl: Kubectl) -> None:
    error = kubectl.refused("apply", "-f", "-", text=RUN + "  colour: red\n")
    assert 'unknown field "spec.colour"' in error


def test_apply_names_a_bad_value(kubectl: Kubectl) -> None:
    error = kubectl.refused("apply", "-f", "-", text=RUN + "  framework: pytorch\n")
    assert "spec.framework" in error


def test_apply_dry_run_on_the_server_leaves_nothing(kubectl: Kubectl) -> None:
    assert "server dry run" in kubectl("apply", "--dry-run=server", "-f", "-", text=RUN)
    kubectl.refused("get", "run", "train")


def test_server_side_apply_says_that_it_is_not_served(kubectl: Kubectl) -> None:
    error = kubectl.refused("apply", "--server-side", "-f", "-", text=RUN)
    assert "server-side apply" in error.lower()


def test_edit_saves_what_the_editor_wrote(
    kubectl: Kubectl, rest: Rest, ns: str, tmp_path: Path
) -> None:
    make_run(rest, ns)
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/priority: 50/priority: 55/' \"$1\"\n")
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    kubectl.environment["EDITOR"] = str(editor)
    assert "edited" in kubectl("edit", "run", "train")
    assert ok(rest.get(own(ns, "runs", "train")))["spec"]["priority"] == 55


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("merge", '{"spec": {"priority": 7}}'),
        ("json", '[{"op": "replace", "path": "/spec/priority", "value": 7}]'),
    ],
)
def test_patch(kubectl: Kubectl, rest: Rest, ns: str, kind: str, body: str) -> None:
    make_run(rest, ns)
    assert "patched" in kubectl("patch", "run", "train", "--type", kind, "-p", body)
    assert ok(rest.get(own(ns, "runs", "train")))["spec"]["priority"] == 7


def test_patch_of_the_status_subresource(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    make_run(rest, ns)
    body = '{"status": {"phase": "Running"}}'
    kubectl("patch", "run", "train", "--subresource=status", "--type=merge", "-p", body)
    assert ok(rest.get(own(ns, "runs", "train")))["status"]["phase"] == "Running"


def test_strategic_patch_of_a_pod(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    ok(rest.post(core(ns, "pods"), pod("a")), 201)
    body = '{"spec": {"containers": [{"name": "main", "image": "example/image:2"}]}}'
    kubectl("patch", "pod", "a", "-p", body)
    assert kubectl.json("get", "pod", "a")["spec"]["containers"][0]["image"] == "example/image:2"


def test_label_and_annotate(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    make_run(rest, ns)
    kubectl("label", "run", "train", "team=support")
    kubectl("annotate", "run", "train", "note=hello")
    metadata = ok(rest.get(own(ns, "runs", "train")))["metadata"]
    assert (metadata["labels"], metadata["annotations"]) == ({"team": "support"}, {"note": "hello"})
    kubectl("label", "run", "train", "team-")
    assert "labels" not in ok(rest.get(own(ns, "runs", "train")))["metadata"]


def test_replace(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    kubectl("create", "-f", "-", text=RUN)
    found = yaml.safe_load(kubectl("get", "run", "train", "-o", "yaml"))
    found["spec"]["priority"] = 65
    assert "replaced" in kubectl("replace", "-f", "-", text=yaml.safe_dump(found))
    assert ok(rest.get(own(ns, "runs", "train")))["spec"]["priority"] == 65


def test_delete_waits_until_it_is_gone(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    make_run(rest, ns)
    assert "deleted" in kubectl("delete", "run", "train")
    assert rest.get(own(ns, "runs", "train")).status == 404


def test_delete_by_label(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    for name in ("a", "b"):
        ok(rest.post(core(ns, "configmaps"), config_map(name, labels={"x": name})), 201)
    kubectl("delete", "cm", "-l", "x=a")
    assert kubectl("get", "cm", "-o", "name").split() == ["configmap/b"]


def test_delete_by_force(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    ok(rest.post(core(ns, "pods"), pod("a", node="n1")), 201)
    kubectl("delete", "pod", "a", "--force", "--grace-period=0")
    assert rest.get(core(ns, "pods", "a")).status == 404


@pytest.mark.parametrize("policy", ["background", "foreground", "orphan"])
def test_delete_with_propagation(kubectl: Kubectl, rest: Rest, ns: str, policy: str) -> None:
    make_run(rest, ns)
    kubectl("delete", "run", "train", f"--cascade={policy}")
    assert rest.get(own(ns, "runs", "train")).status == 404


def test_wait_for_a_field(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    make_run(rest, ns, phase="Running")
    waiting = kubectl.start(
        "wait", "run/train", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=30s"
    )
    body = {"status": {"phase": "Succeeded"}}
    ok(rest.merge(own(ns, "runs", "train", "status"), body))
    output, _ = waiting.communicate(timeout=40)
    assert waiting.returncode == 0, output
    assert "condition met" in output


def test_wait_for_a_condition_that_holds(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    make_run(rest, ns)
    condition = {
        "type": "Complete", "status": "True", "reason": "Done", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    body = {"status": {"conditions": [condition]}}
    ok(rest.merge(own(ns, "runs", "train", "status"), body))
    assert "condition met" in kubectl("wait", "run/train", "--for=condition=Complete")


def test_wait_for_deletion(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    make_run(rest, ns)
    waiting = kubectl.start("wait", "run/train", "--for=delete", "--timeout=30s")
    ok(rest.delete(own(ns, "runs", "train")))
    output, _ = waiting.communicate(timeout=40)
    assert waiting.returncode == 0, output


# --- typed creates: kubectl sends protobuf ------------------------------------------------------


def test_create_namespace(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    kubectl("create", "namespace", f"{ns}-new")
    assert ok(rest.get(f"/api/v1/namespaces/{ns}-new"))["status"]["phase"] == "Active"


def test_create_configmap(kubectl: Kubectl, rest: Rest, ns: str, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    kubectl("create", "configmap", "a", "--from-literal=k=v=w", f"--from-file={tmp_path}/binary")
    found = ok(rest.get(core(ns, "configmaps", "a")))
    assert found["data"] == {"k": "v=w"}
    assert set(found["binaryData"]) == {"binary"}


def test_create_secret(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    kubectl("create", "secret", "generic", "a", "--from-literal=k=v")
    found = ok(rest.get(core(ns, "secrets", "a")))
    assert (found["type"], found["data"]) == ("Opaque", {"k": "dg=="})


def test_create_serviceaccount(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    kubectl("create", "serviceaccount", "bot")
    assert ok(rest.get(core(ns, "serviceaccounts", "bot")))["metadata"]["name"] == "bot"


def test_run_makes_a_pod(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    kubectl("run", "a", "--image=example/image:1", "--restart=Never", "--", "sleep", "5")
    found = ok(rest.get(core(ns, "pods", "a")))["spec"]
    assert found["restartPolicy"] == "Never"
    assert found["containers"][0]["args"] == ["sleep", "5"]


def test_create_with_a_generated_name(kubectl: Kubectl) -> None:
    text = RUN.replace("name: train", "generateName: train-", 1)
    assert kubectl("create", "-f", "-", "-o", "name", text=text).startswith(
        "run.windlass.dev/train-"
    )


# --- nodes --------------------------------------------------------------------------------------


@pytest.fixture
def node(rest: Rest, ns: str) -> str:
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"{ns}-node"}}
    ok(rest.post("/api/v1/nodes", body), 201)
    return f"{ns}-node"


def test_cordon_and_uncordon(kubectl: Kubectl, node: str) -> None:
    assert "cordoned" in kubectl("cordon", node)
    assert kubectl.json("get", "node", node)["spec"]["unschedulable"] is True
    assert "uncordoned" in kubectl("uncordon", node)


def test_taint(kubectl: Kubectl, node: str) -> None:
    kubectl("taint", "node", node, "team=support:NoSchedule")
    (taint,) = kubectl.json("get", "node", node)["spec"]["taints"]
    assert (taint["key"], taint["value"], taint["effect"]) == ("team", "support", "NoSchedule")


def test_drain_evicts_pods(kubectl: Kubectl, rest: Rest, ns: str, node: str) -> None:
    ok(rest.post(core(ns, "pods"), pod("a", node=node)), 201)
    ok(rest.merge(core(ns, "pods", "a", "status"), {"status": {"phase": "Succeeded"}}))
    assert "drained" in kubectl("drain", node, "--force", "--timeout=30s")
    assert rest.get(core(ns, "pods", "a")).status == 404


# --- about the server ---------------------------------------------------------------------------


def test_explain_shows_our_documentation(kubectl: Kubectl) -> None:
    text = kubectl("explain", "run.spec.priority")
    assert "<integer>" in text
    assert "higher first" in text
    assert "roles" in kubectl("explain", "runs.spec", "--recursive")


@pytest.mark.parametrize("kind", ["pods", "configmaps", "nodes", "queues.spec", "cronruns.spec"])
def test_explain_of_other_kinds(kubectl: Kubectl, kind: str) -> None:
    assert "FIELDS:" in kubectl("explain", kind)


def test_auth_whoami(kubectl: Kubectl) -> None:
    rows = {row[0]: row[1:] for row in columns(kubectl("auth", "whoami"))}
    assert rows["Username"]
    assert "system:authenticated" in " ".join(rows["Groups"])


@pytest.mark.parametrize("command", ["apply", "create"])
def test_an_unknown_kind_is_refused_by_name(kubectl: Kubectl, command: str) -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {}}
    refused = kubectl.refused(command, "-f", "-", text=yaml.safe_dump(job))
    assert 'no matches for kind "Job" in version "batch/v1"' in refused
    assert "doesn't have a resource type" in kubectl.refused("get", "jobs")


def test_auth_can_i(kubectl: Kubectl) -> None:
    assert kubectl("auth", "can-i", "create", "runs").strip() == "yes"
    assert "runs.windlass.dev" in kubectl("auth", "can-i", "--list") or "*.*" in kubectl(
        "auth", "can-i", "--list"
    )


def test_api_resources(kubectl: Kubectl) -> None:
    rows = [row for row in columns(kubectl("api-resources")) if row[0] == "runs"]
    assert rows == [["runs", "wr", "windlass.dev/v1alpha1", "true", "Run"]]


def test_api_versions_and_version(kubectl: Kubectl) -> None:
    assert "windlass.dev/v1alpha1" in kubectl("api-versions").split()
    assert "Server Version: v1." in kubectl("version")


def test_cluster_events(kubectl: Kubectl, rest: Rest, ns: str) -> None:
    event = {
        "metadata": {"name": "e"}, "reason": "Started", "type": "Normal", "message": "hello",
        "involvedObject": {"kind": "Run", "name": "train", "namespace": ns},
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    ok(rest.post(core(ns, "events"), event), 201)
    assert "hello" in kubectl("events")
    assert "hello" in kubectl("get", "events")
