"""Teams on a real control plane: the same command, real Namespaces and RBAC, its own people."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import rest, waiting
from tests.harness.control_plane import ControlPlane
from tests.kubernetes.conftest import Cli
from tests.kubernetes.parts import Installation

pytestmark = pytest.mark.kubernetes
RUN = {
    "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": "job"},
    "spec": {"suspend": True, "roles": [{"name": "worker", "command": ["true"]}]},
}  # fmt: skip
RUNS = "/apis/windlass.dev/v1alpha1/namespaces/support/runs"


@pytest.fixture(scope="module")
def plane(kubernetes_binaries: Path) -> Iterator[ControlPlane]:
    with ControlPlane.start(users={"alice": [], "bob": [], "carol": ["ml"]}) as started:
        yield started


@pytest.fixture(scope="module")
def place(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Where Windlass is installed. Its server runs: commands ask it for tokens, and wait where it
    does not answer."""
    made = Installation(plane, tmp_path_factory.mktemp("parts"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def admin(plane: ControlPlane) -> Cli:
    return Cli(plane.kubeconfig)


def test_before_windlass_is_installed_a_team_is_refused_with_the_remedy(admin: Cli) -> None:
    refused = admin.fails("team", "create", "support", "--member", "alice")
    assert "windlass install" in refused.err


def test_a_team_is_real_namespace_roles_and_quota_and_again_nothing_changes(
    admin: Cli, plane: ControlPlane, place: Installation
) -> None:
    place.install()
    place.start_server()
    words = ("team", "create", "support", "--guarantee", "gpu=16", "--weight", "2", "--member",
             "alice", "--viewer", "bob", "--member", "group:ml", "--quota", "pods=50")  # fmt: skip
    made = admin.json(*words)
    assert made["changed"] is True
    assert {each["skipped"] for each in made["tokens"]} == {"cluster"}
    assert "sign in as for kubectl" in admin(*words).err
    again = admin.json(*words)
    assert again["changed"] is False
    namespace = plane.rest.get("/api/v1/namespaces/support").json
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "baseline"
    quota = plane.rest.get("/api/v1/namespaces/support/resourcequotas/windlass-team").json
    assert quota["spec"]["hard"] == {"pods": "50"}


def test_rbac_admits_the_members_of_the_team(admin: Cli, plane: ControlPlane) -> None:
    alice, bob, carol = (
        rest.from_kubeconfig(plane.token_kubeconfig(user)) for user in ("alice", "bob", "carol")
    )
    # The API server answers 503 for a moment after a kind was installed.
    waiting.until(lambda: alice.post(RUNS, RUN).status == 201, "alice may make runs")
    assert bob.post(RUNS, RUN | {"metadata": {"name": "his"}}).status == 403
    assert bob.get(f"{RUNS}/job").status == 200
    assert bob.get("/api/v1/namespaces/support/secrets").status == 403
    assert carol.post(RUNS, RUN | {"metadata": {"name": "hers"}}).status == 201
    for user, role in (("alice", "member"), ("bob", "viewer"), ("carol", "member")):
        told = Cli(plane.token_kubeconfig(user)).json("whoami")
        assert told["teams"] == {"support": role}, told
    admin("team", "set", "support", "--remove", "alice", "--no-tokens")
    assert waiting.until(lambda: alice.get(RUNS).status == 403, "she is out")


def test_programs_get_a_service_accounts_token(
    admin: Cli, plane: ControlPlane, tmp_path: Path
) -> None:
    refused = admin.fails("token", "create", "ci", "-N", "support")
    assert "--account" in refused.err
    folder = tmp_path / "tokens"
    admin(
        "token", "create", "ci", "--account", "--ttl", "1h", "-N", "support", "--write", str(folder)
    )
    admin("team", "set", "support", "--member", "account:ci")
    program = Cli(folder / "ci.kubeconfig")
    told = program.json("whoami")
    assert told["user"] == "system:serviceaccount:support:ci"
    waiting.until(lambda: program.json("whoami")["teams"] == {"support": "member"}, "it is in")


def test_an_override_carries_the_name_of_the_caller_not_the_submitted_one(
    admin: Cli, plane: ControlPlane
) -> None:
    path = "/apis/windlass.dev/v1alpha1/queues/support"
    group = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{group}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "bob"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "bob"}],
    }  # fmt: skip
    assert plane.rest.post(f"/apis/{group}/v1/clusterrolebindings", binding).status == 201
    admin("budget", "set", "support", "--hours", "gpu=10")
    bob = Cli(plane.token_kubeconfig("bob"))
    until = ("--until", "2099-01-01T00:00:00Z")
    waiting.until(lambda: bob._run("queue", "pause", "support").code == 0, "bob may")
    bob("queue", "resume", "support")

    def by() -> str:
        return str(plane.rest.get(path).json["spec"]["budget"]["override"].get("by", ""))

    def signed() -> bool:
        # A policy counts a moment after it was made.
        bob("budget", "override", "support", *until, "--reason", f"deadline {random.random()}")
        return by() == "bob"

    waiting.until(signed, "it is signed")
    lie = {"until": "2098-01-01T00:00:00Z", "reason": "mine", "by": "alice"}
    plane.rest.merge(path, {"spec": {"budget": {"override": lie}}})
    assert by() not in ("alice", "bob", "")
    # A user that changes something else does not become its author.
    before = by()
    bob("team", "set", "support", "--weight", "3", "--no-tokens")
    assert by() == before


def test_work_for_another_teams_queue_is_refused(admin: Cli, plane: ControlPlane) -> None:
    admin("team", "create", "language", "--no-tokens")

    def refused(queue: str, name: str) -> str:
        spec = {**RUN["spec"], "queue": queue}
        answer = plane.rest.post(RUNS, RUN | {"metadata": {"name": name}, "spec": spec})
        return answer.json["message"] if answer.status == 403 else ""

    waiting.until(lambda: refused("language", f"x{random.randrange(10**9)}"), "it is refused")
    told = refused("language", "thief")
    assert "QueueNotYours: queue language is for other namespaces, not for support" in told
    assert refused("support", "own") == ""
    moved = plane.rest.merge(f"{RUNS}/own", {"spec": {"queue": "language"}})
    assert moved.status == 403
    for run in plane.rest.get(RUNS).json["items"]:
        if run["metadata"]["name"] not in ("job", "hers"):
            path = f"{RUNS}/{run['metadata']['name']}"
            plane.rest.merge(path, {"metadata": {"finalizers": None}})
            plane.rest.delete(path)


def test_a_team_is_deleted_with_all_it_has(admin: Cli, plane: ControlPlane) -> None:
    assert "--stop-runs" in admin.fails("team", "delete", "support", "-y").err
    for name in ("job", "hers"):  # no controllers run that would take them off
        plane.rest.merge(f"{RUNS}/{name}", {"metadata": {"finalizers": None}})
    admin("team", "delete", "support", "--stop-runs", "-y")
    assert plane.rest.get("/api/v1/namespaces/support").status == 404
    assert plane.rest.get("/apis/windlass.dev/v1alpha1/queues/support").status == 404
