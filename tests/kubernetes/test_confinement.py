"""What the token of a node's agent can do, and what a run can make the controllers do, on a real
control plane.

An agent annotates pods of Runs on its own node and sends logs of Runs of its own node; nothing
else, and nothing to pods and logs of other nodes. A Run mounts a folder of a node if its user could
do so by a pod, or if the administrator listed the folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.objects import ok
from tests.harness import rest, waiting
from tests.harness.control_plane import ControlPlane
from tests.kubernetes.parts import API, PATIENCE, PLATFORM, Installation, as_user
from windlass.install import names
from windlass.kinds.annotations import OF_AGENTS
from windlass.kinds.annotations import PROGRESS as PROGRESS_ANNOTATION
from windlass.kinds.types import run

pytestmark = pytest.mark.kubernetes

Json = dict[str, Any]
PODS = "/api/v1/namespaces/red/pods"
PROGRESS = {"metadata": {"annotations": {PROGRESS_ANNOTATION: "{}"}}}


@pytest.fixture(scope="module")
def place(
    kubernetes_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    with ControlPlane.start(users={"alice": []}) as plane:
        made = Installation(plane, tmp_path_factory.mktemp("parts"))
        made.install("--host-mounts", "/data,/scratch")
        for node in ("n1", "n2"):
            made.add_node(node)
        made.add_team("red", "alice")
        add_pods(made)
        try:
            made.start_server()
            yield made
        finally:
            made.stop()


@pytest.fixture(scope="module")
def agent(place: Installation) -> rest.Rest:
    """With the token of the agent on n1."""
    place.kubeconfig(names.AGENT, names.NODES, "n1")
    found = as_user(place.plane, names.AGENT)
    waiting.until(
        lambda: found.merge(f"{PODS}/there", PROGRESS, dryRun="All").status == 403,
        "the policy is in force", PATIENCE,
    )  # fmt: skip
    return found


def add_pods(place: Installation) -> None:
    """Pods of a Run on either node, and one of nobody's Run."""
    labels = {run.LABEL_RUN: "train", "team": "red"}
    for name, node, own in (
        ("here", "n1", labels), ("there", "n2", labels), ("other", "n1", {"team": "red"}),
        ("nowhere", "", labels),
    ):  # fmt: skip
        spec = {"nodeName": node} if node else {}
        body = {
            "metadata": {"name": name, "labels": own, "annotations": {"team.example/kept": "1"}},
            "spec": {"containers": [{"name": "main", "image": "none"}], **spec},
        }
        ok(place.rest.post(PODS, body), 201)


def test_an_agent_annotates_pods_of_its_node(place: Installation, agent: rest.Rest) -> None:
    for name in OF_AGENTS:
        ok(agent.merge(f"{PODS}/here", {"metadata": {"annotations": {name: "{}"}}}))
        ok(agent.merge(f"{PODS}/here", {"metadata": {"annotations": {name: None}}}))


REFUSED: dict[str, tuple[str, Json, str]] = {
    "a pod on another node": ("there", PROGRESS, "of its own node"),
    "a pod on no node": ("nowhere", PROGRESS, "of its own node"),
    "a pod of no Run": ("other", PROGRESS, "pods of Runs"),
    "another image": (
        "here", {"spec": {"containers": [{"name": "main", "image": "evil"}]}},
        "only write annotations",
    ),
    "a deadline": ("here", {"spec": {"activeDeadlineSeconds": 1}}, "only write annotations"),
    "a label": ("here", {"metadata": {"labels": {"team": "blue"}}}, "only write annotations"),
    "no labels": ("here", {"metadata": {"labels": None}}, "only write annotations"),
    "a finalizer": (
        "here", {"metadata": {"finalizers": ["evil.example/stay"]}}, "only write annotations",
    ),
    "an owner": (
        "here",
        {"metadata": {"ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "x"}]}},
        "only write annotations",
    ),
    "an annotation of others": (
        "here", {"metadata": {"annotations": {"windlass.dev/ports": "1-2"}}},
        "only write the annotations",
    ),
    "without an annotation of others": (
        "here", {"metadata": {"annotations": {"team.example/kept": None}}},
        "only write the annotations",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_an_agent_changes_nothing_else(place: Installation, agent: rest.Rest, what: str) -> None:
    name, change, message = REFUSED[what]
    before = ok(place.rest.get(f"{PODS}/{name}"))
    answer = agent.strategic(f"{PODS}/{name}", change)
    assert answer.status == 403, answer.summary
    assert message in answer.summary
    assert ok(place.rest.get(f"{PODS}/{name}")) == before


def test_a_token_of_the_agent_without_a_node_changes_no_pod(place: Installation) -> None:
    """One that was requested for the account, past the pod of any agent."""
    place.kubeconfig(names.AGENT, names.NODES)
    loose = as_user(place.plane, names.AGENT)
    waiting.until(
        lambda: loose.merge(f"{PODS}/here", PROGRESS, dryRun="All").status == 403,
        "the policy is in force", PATIENCE,
    )  # fmt: skip


def test_an_agent_writes_logs_of_runs_on_its_node_and_no_others(
    place: Installation, agent: rest.Rest
) -> None:
    runs = f"{API}/namespaces/red/runs"
    uids = {}
    for name, node, past in (("mine", "n1", None), ("left", "n2", ["n1"]), ("theirs", "n2", None)):
        body = {
            "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": name},
            "spec": {"user": "admin", "suspend": True, "roles": [{"command": ["true"]}]},
        }  # fmt: skip
        uids[name] = ok(place.rest.post(runs, body), 201)["metadata"]["uid"]
        held = {"attempt": 0, "epoch": 1, "members": {"worker": [{"node": node}]}}
        status = {"assignment": held, "pastNodes": past}
        ok(place.rest.merge(f"{runs}/{name}/status", {"status": status}))

    def send(who: rest.Rest, name: str) -> list[int]:
        entry = f"{PLATFORM}/namespaces/red/runs/{name}/logs/0-worker-0-u"
        record = {
            "run": uids[name], "attempt": 0, "role": "worker", "index": 0, "container": "main",
            "pod": name, "uid": "u", "keptAt": "2026-01-01T00:00:00.000000Z", "bytes": 4,
        }  # fmt: skip
        line = b"2026-01-01T00:00:00.000000000Z stdout F forged\n"
        sent = [
            who.put(f"{entry}/main/0", line, run=uids[name]),
            who.put(entry, record, run=uids[name]),
        ]
        return [answer.status for answer in sent]

    assert send(agent, "theirs") == [403, 403]
    for user in ("alice", "admin"):
        assert send(as_user(place.plane, user), "mine") == [403, 403], user
    listed = f"{PLATFORM}/namespaces/red/runs/{{}}/logs"
    for name in ("mine", "theirs"):
        assert ok(place.rest.get(listed.format(name)))["items"] == []
    for name in ("mine", "left"):
        assert send(agent, name) == [204, 204], name
        assert len(ok(place.rest.get(listed.format(name)))["items"]) == 1


# --- folders of nodes


def asked(source: str, kind: str = "Run", name: str = "mounts") -> Json:
    """A Run, or a CronRun of such Runs, that mounts something."""
    spec: Json = {"roles": [{"command": ["true"]}], "mounts": [{"from": source, "path": "/x"}]}
    if kind == "CronRun":
        spec = {"schedule": "0 0 1 1 *", "suspend": True, "template": {"spec": spec}}
    return {
        "apiVersion": "windlass.dev/v1alpha1", "kind": kind, "metadata": {"name": name},
        "spec": spec,
    }  # fmt: skip


@pytest.fixture(scope="module")
def alice(place: Installation) -> rest.Rest:
    found = as_user(place.plane, "alice")
    refused = asked("host:/etc")
    runs = f"{API}/namespaces/red/runs"
    waiting.until(
        lambda: found.post(runs, refused, dryRun="All").status == 403,
        "the policy is in force", PATIENCE,
    )  # fmt: skip
    return found


@pytest.mark.parametrize("kind", ["Run", "CronRun"])
@pytest.mark.parametrize(
    ("source", "allowed"),
    [
        ("host:/data", True), ("host:/scratch", True), ("secret:mine", True),
        ("claim:mine", True), ("host:/data/below", False), ("host:/data/../etc", False),
        ("host:/datas", False), ("host:/data/", False), ("host:/", False),
    ],
)  # fmt: skip
def test_a_member_mounts_only_listed_folders_of_nodes(
    place: Installation, alice: rest.Rest, kind: str, source: str, allowed: bool
) -> None:
    path = f"{API}/namespaces/red/{kind.lower()}s"
    answer = alice.post(path, asked(source, kind), dryRun="All")
    assert answer.status == (201 if allowed else 403), answer.summary
    if not allowed:
        assert "windlass install --host-mounts DIR" in answer.summary
    ok(place.rest.post(path, asked(source, kind), dryRun="All"), 201)


def test_a_member_does_not_edit_a_cron_run_that_mounts_what_the_member_may_not(
    place: Installation, alice: rest.Rest
) -> None:
    path = f"{API}/namespaces/red/cronruns"
    ok(place.rest.post(path, asked("host:/etc", "CronRun", "nightly")), 201)
    ok(alice.merge(f"{path}/nightly", {"spec": {"suspend": True}}))
    # Another change makes its editor the user of the Runs, who may not mount the folder.
    answer = alice.merge(f"{path}/nightly", {"spec": {"schedule": "0 1 1 1 *"}})
    assert answer.status == 403, answer.summary
    mine = {"roles": [{"name": "worker", "command": ["cat", "/x/shadow"]}]}
    answer = alice.merge(f"{path}/nightly", {"spec": {"template": {"spec": mine}}})
    assert answer.status == 403, answer.summary
