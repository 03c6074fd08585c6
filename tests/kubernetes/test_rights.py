"""Every part works with exactly its ServiceAccount's rights, and teams do not reach each other.

Real API server with RBAC; each part is a process with the token of its account; people come as
users whose only rights are RoleBindings to the roles that the installation brings.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.objects import ok
from tests.harness import rest, waiting
from tests.harness.certificates import Authority
from tests.harness.control_plane import ControlPlane
from tests.kubernetes.conftest import Cli
from tests.kubernetes.parts import API, PATIENCE, PLATFORM, Installation, as_user
from windlass.install import names
from windlass.install.manifests import dashboard, monitoring, rbac
from windlass.server.platform import routes

pytestmark = pytest.mark.kubernetes

USERS = {"alice": [], "bob": [], "carol": [], "vera": [], "vic": []}


@pytest.fixture(scope="module")
def place(
    kubernetes_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    with ControlPlane.start(users=USERS, audit=True, audit_reads=True) as plane:
        made = Installation(plane, tmp_path_factory.mktemp("parts"))
        made.install("--monitoring", "monitoring/prometheus")
        made.add_node()
        made.add_team("red", "alice")
        made.add_team("blue", "bob")
        made.bind("blue", "carol", "windlass-member")
        made.bind("red", "vic", "windlass-viewer")
        try:
            made.start("scheduler")
            made.start("controllers")
            made.start_server()
            yield made
        finally:
            made.stop()


@pytest.fixture
def alice(place: Installation) -> Cli:
    return Cli(place.plane.token_kubeconfig("alice"))


@pytest.fixture
def bob(place: Installation) -> Cli:
    return Cli(place.plane.token_kubeconfig("bob"))


def test_a_person_with_one_kubeconfig_submits_asks_and_sees_the_end(
    place: Installation, alice: Cli, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    alice("submit", "-N", "red", "-n", "mine", "--workdir", str(tmp_path), "--", "true")
    place.report("red", "mine", phase="Running", podIP="10.0.0.5")
    running = place.reaches("red", "mine", "Running")
    assert running["spec"]["user"] == "alice"
    assert alice.json("ps", "-N", "red")["items"][0]["name"] == "mine"
    assert alice.json("why", "-N", "red", "mine")["phase"] == "Running"
    book = as_user(place.plane, "alice").get(f"{PLATFORM}/namespaces/red/runs/mine/addresses")
    assert ok(book) == {"complete": True, "members": {"worker": ["10.0.0.5"]}}
    place.report("red", "mine", phase="Succeeded")
    place.reaches("red", "mine", "Succeeded")
    assert "true" in alice("submit", "-N", "red", "--dry-run", "--", "true").out
    assert place.complaints() == []


def test_runs_by_the_clock_stops_and_queues_need_no_more(place: Installation, alice: Cli) -> None:
    alice("cron", "create", "-N", "red", "-n", "often", "--schedule", "* * * * *", "--", "true")

    def made() -> list[str]:
        listed = ok(place.rest.get(f"{API}/namespaces/red/runs"))["items"]
        return [each["metadata"]["name"] for each in listed if "often" in each["metadata"]["name"]]

    (name, *_) = waiting.until(made, "its run is there", 2 * PATIENCE)
    place.report("red", name, phase="Running")
    place.reaches("red", name, "Running")
    alice("stop", "-N", "red", name)

    def gone() -> bool:
        for pod in place.pods("red", name):
            path = f"/api/v1/namespaces/red/pods/{pod['metadata']['name']}"
            place.rest.delete(path, {"gracePeriodSeconds": 0})
        return not place.pods("red", name)

    waiting.until(gone, "its pod was asked to go", PATIENCE)
    ended = place.reaches("red", name, "Stopped")
    assert ended["spec"]["user"] == "alice", "its owner's, though the controllers made it"
    alice("cron", "delete", "-N", "red", "often")

    def counted() -> bool:
        status = ok(place.rest.get(f"{API}/queues/default")).get("status") or {}
        return "used" in status or "pending" in status

    waiting.until(counted, "the queue tells what it holds", PATIENCE)
    assert place.complaints() == []


def test_a_run_that_waits_for_a_resource_quota_is_explained_by_that_quota(
    place: Installation, bob: Cli
) -> None:
    """The server explains with the informers that the scheduler decides with, and may read them."""
    quotas = "/api/v1/namespaces/blue/resourcequotas"
    body = {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "1"}}}
    ok(place.rest.post(quotas, body), 201)
    waiting.until(
        lambda: "hard" in ok(place.rest.get(f"{quotas}/small")).get("status", {}),
        "the quota is enforced", PATIENCE,
    )  # fmt: skip
    bob("submit", "-N", "blue", "-n", "pair", "-w", "2", "--", "true")
    waiting.until(
        lambda: place.run("blue", "pair")["status"].get("reason") == "WaitingForQuota",
        "the scheduler has decided", PATIENCE,
    )  # fmt: skip
    decided = place.run("blue", "pair")["status"]["message"]
    assert "ResourceQuota blue/small" in decided
    why = bob.json("why", "-N", "blue", "pair")
    assert (why["reason"], why["message"]) == ("WaitingForQuota", decided)
    (row,) = bob.json("ps", "-N", "blue")["items"]
    assert (row["reason"], row["message"]) == ("WaitingForQuota", decided)
    options = ("-N", "blue", "-n", "next", "-w", "2", "--dry-run", "--json")
    planned = json.loads(bob("submit", *options, "--", "true").out)
    assert planned["plan"]["reason"] == "WaitingForQuota"
    assert "ResourceQuota blue/small" in planned["plan"]["message"]
    ok(place.rest.delete(f"{quotas}/small"))
    waiting.until(lambda: len(place.pods("blue", "pair")) == 2, "it has started", PATIENCE)
    place.report("blue", "pair", phase="Succeeded")
    place.reaches("blue", "pair", "Succeeded")
    assert place.complaints() == []


@pytest.mark.parametrize(
    ("part", "verbs", "resource"),
    [
        ("scheduler", ("patch",), "runs.windlass.dev/status"),
        ("controllers", ("create", "delete"), "pods"),
        ("controllers", ("patch",), "runs.windlass.dev/status"),
    ],
)
def test_without_one_of_its_rights_a_part_does_not_do_its_work(
    place: Installation, alice: Cli, part: str, verbs: tuple[str, ...], resource: str
) -> None:
    """So what passes above passes because of the rights in the table, and not beside them."""
    account = f"windlass-{part}"
    path = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{account}"
    whole = ok(place.rest.get(path))["rules"]
    less = [rule for rule in whole if rule != rbac._rule(verbs, resource)]
    assert len(less) == len(whole) - 1
    ok(place.rest.merge(path, {"rules": less}))
    name = f"{part}-{verbs[0]}-{resource.partition('.')[0]}"
    try:
        waiting.until(
            lambda: not _may(place, account, verbs[0], resource), "the right is gone", PATIENCE
        )
        before = len(place.complaints())
        alice("submit", "-N", "red", "-n", name, "--", "true")
        waiting.until(lambda: len(place.complaints()) > before, "it is refused", PATIENCE)
    finally:
        ok(place.rest.merge(path, {"rules": whole}))
    place.report("red", name, phase="Succeeded")
    place.reaches("red", name, "Succeeded")
    for each in place.parts:  # what was refused on purpose is no complaint of the others
        each.process.log.write_text("")


def _may(place: Installation, account: str, verb: str, resource: str) -> bool:
    full, _, subresource = resource.partition("/")
    plural, _, group = full.partition(".")
    wanted = {"verb": verb, "group": group, "resource": plural, "subresource": subresource}
    body = {
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{names.SYSTEM}:{account}",
            "resourceAttributes": wanted,
        },
    }  # fmt: skip
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(ok(place.rest.post(path, body), 201)["status"]["allowed"])


# --- teams ----------------------------------------------------------------------------------------

DIGEST = "sha256:" + "0" * 64
FILLED = {
    "namespace": "red", "run": "secret-plan", "log": "0-worker-0-u", "container": "worker",
    "number": "0", "digest": DIGEST, "box": "b" * 24, "key": "0", "token": "t",
    "node": "n1", "pod": "secret-plan-worker-0", "stepkey": "a" * 64,
    "study": "sweep",
}  # fmt: skip
MISSING = FILLED | {
    "run": "other-plan", "log": "1-worker-0-u", "digest": DIGEST.replace("0", "1"),
    "box": "c" * 24, "key": "1", "token": "u", "node": "n2",
    "pod": "other-plan-worker-0", "stepkey": "b" * 64,
    "study": "other",
}  # fmt: skip
"""The same team, with names of things that are not there."""
OF_RED = [
    ("GET", f"{API}/namespaces/red/runs"),
    ("GET", f"{API}/namespaces/red/runs/{{run}}"),
    ("PATCH", f"{API}/namespaces/red/runs/{{run}}"),
    ("DELETE", f"{API}/namespaces/red/runs/{{run}}"),
    ("POST", f"{API}/namespaces/red/runs"),
    ("GET", f"{API}/runs"),
    ("GET", "/api/v1/namespaces/red/pods"),
    ("GET", "/api/v1/namespaces/red/secrets"),
    *(
        (method, route.template)
        for route in routes.ROUTES
        if route.template.startswith(PLATFORM) and route.audience != "everyone"
        for method in route.methods
    ),
]


@pytest.fixture(scope="module")
def secret_plan(place: Installation) -> str:
    body = {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": "secret-plan"},
        "spec": {"suspend": True, "user": "alice", "roles": [{"command": ["true"]}]},
    }  # fmt: skip
    ok(as_user(place.plane, "alice").post(f"{API}/namespaces/red/runs", body), 201)
    return "secret-plan"


@pytest.mark.parametrize(("method", "template"), OF_RED, ids=lambda value: value[-40:])
def test_users_outside_the_team_reach_nothing_and_learn_nothing(
    place: Installation, secret_plan: str, method: str, template: str
) -> None:
    body = {} if method in ("POST", "PATCH", "PUT") else None
    strangers = {
        "another team's member": (place.plane.tokens["bob"], 403),
        "a token that has ended or was made up": ("0123456789", 401),
        "nobody": ("", 401),
    }
    for who, (token, refused) in strangers.items():
        caller = rest.Rest(place.plane.url, place.plane.rest.tls, token)
        told = []
        for names_in in (FILLED, MISSING):
            answer = caller.request(method, template.format_map(names_in), body)
            assert answer.status == refused, (who, answer.summary)
            asked = "|".join(re.escape(value) for value in names_in.values())
            told.append(re.sub(rf"\b({asked})\b", "X", answer.body.decode()))
        assert told[0] == told[1], f"{who} can tell whether it is there"
    path = template.format_map(FILLED)
    by_bob = ("bob", method, path, 403)
    waiting.until(lambda: by_bob in refusals(place), "the refusal is in the audit log")
    assert ("", method, path, 401) in refusals(place), "and so is that of whoever is nobody"


def refusals(place: Installation) -> set[tuple[str, str, str, int]]:
    """User, method, path and code: of the API server's audit log, which sees every caller first,
    and of our server's own, which sees the callers that it let through."""
    found = set()
    for line in (place.plane.directory / "audit.log").read_text().splitlines():
        event = json.loads(line)
        code = event.get("responseStatus", {}).get("code")
        if code in (401, 403):
            verb = event["verb"]
            path = event["requestURI"].partition("?")[0]
            user = event["user"].get("username", "")
            found |= {(user, method, path, code) for method in _METHODS[verb]}
    for line in (place.folder / "state/audit.log").read_text().splitlines():
        told = json.loads(line)
        if told["code"] in (401, 403):
            found.add((told["user"], "", told["path"], told["code"]))
    return found


_METHODS = {
    "get": ("GET", "HEAD"), "list": ("GET", "HEAD"), "create": ("POST",), "update": ("PUT",),
    "patch": ("PATCH",), "delete": ("DELETE",), "head": ("HEAD",), "post": ("POST",),
    "put": ("PUT",), "watch": ("GET",), "deletecollection": ("DELETE",),
}  # fmt: skip

VIEWED = (
    "/runs", "/runs/{run}", "/pods", "/ps", "/usage", "/statement", "/why", "/logs", "/logs/{log}",
    "/addresses", "/externalpods", "/podmetrics", "/podmetrics/{pod}", "/steps", "/studies",
    "/studies/{study}", "/trials",
)  # fmt: skip
"""Ends of the paths in the team that its viewer may read."""


@pytest.mark.parametrize(("method", "template"), OF_RED, ids=lambda value: value[-40:])
def test_a_viewer_reads_the_teams_things_and_changes_nothing(
    place: Installation, secret_plan: str, method: str, template: str
) -> None:
    vic = as_user(place.plane, "vic")
    path = template.format_map(FILLED)
    answer = vic.request(method, path, {} if method in ("POST", "PATCH", "PUT") else None)
    if method in ("GET", "HEAD") and "/namespaces/" in path and template.endswith(VIEWED):
        # A log, a pod or an address that is not there, or no more, is no secret to him.
        assert answer.status in (200, 404, 410), answer.summary
        return
    if "/worker/" in template:
        assert answer.status == 401, "only the holder of the token of the mailbox"
        return
    if any(route.template == template and route.embedded for route in routes.ROUTES):
        assert answer.status in (403, 404), "a cluster does not serve it"
        return
    assert answer.status == 403, answer.summary
    mine = {("vic", method, path, 403), ("vic", "", path, 403)}
    waiting.until(lambda: mine & refusals(place), "the refusal is in an audit log")


def test_rights_on_the_platform_api_alone_open_nothing(
    place: Installation, secret_plan: str
) -> None:
    """Behind the API server's door the server asks for rights on the runs themselves."""
    group = "rbac.authorization.k8s.io"
    role = {
        "apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": "only-platform"},
        "rules": [{"apiGroups": ["platform.windlass.dev"], "resources": ["*"], "verbs": ["*"]}],
    }  # fmt: skip
    ok(place.rest.post(f"/apis/{group}/v1/clusterroles", role), 201)
    binding = {
        "apiVersion": f"{group}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "vera"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "only-platform"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "vera"}],
    }  # fmt: skip
    ok(place.rest.post(f"/apis/{group}/v1/clusterrolebindings", binding), 201)
    vera = as_user(place.plane, "vera")
    door = b"platform.windlass.dev"  # the API server's own refusal names the group that it guards
    waiting.until(lambda: door not in vera.get(f"{PLATFORM}/externalpods").body, "she is let in")
    for method, template in OF_RED:
        path = template.format_map(FILLED)
        if path.startswith(PLATFORM):
            answer = vera.request(method, path, {} if method in ("POST", "PATCH", "PUT") else None)
            # Tokens and queue plans are the other engine's; mailboxes need their token.
            assert answer.status in (401, 403, 404), (method, path, answer.summary)
            assert door not in answer.body or answer.status == 404, answer.summary


def test_a_node_is_measured_by_its_own_agent_alone(place: Installation) -> None:
    path = f"{PLATFORM}/nodemetrics"
    report = {"window": 1.0, "node": {"cpu": "1500m", "memory": "1Gi"}, "pods": {}}
    place.kubeconfig(names.AGENT, names.NODES, "n1")
    own = as_user(place.plane, names.AGENT)
    assert ok(own.put(f"{path}/n1", report))["nextSeconds"] > 0
    refused = own.put(f"{path}/n2", report)
    assert refused.status == 403, refused.summary
    assert "only the agent of node n2" in refused.summary
    assert own.get(path).status == 200, "nodes are public"
    for user in ("alice", "admin"):
        assert as_user(place.plane, user).put(f"{path}/n1", report).status == 403, user
    (told,) = ok(as_user(place.plane, "alice").get(path))["items"]
    assert (told["metadata"]["name"], told["usage"]["cpu"]) == ("n1", "1500m")
    assert place.rest.put(f"{path}/n1", report).status == 403, "not even an administrator"


def test_a_run_behind_another_team_is_explained_without_its_names(
    place: Installation, bob: Cli, secret_plan: str
) -> None:
    bob("submit", "-N", "blue", "-n", "waits", "--cpus", "3.9", "--", "true")
    place.report("blue", "waits", phase="Running")
    alice = Cli(place.plane.token_kubeconfig("alice"))
    alice("submit", "-N", "red", "-n", "behind", "--cpus", "2", "--", "true")

    def told() -> str:
        text = alice("why", "-N", "red", "behind").out
        return text if "cpu" in text else ""

    assert "waits" not in waiting.until(told, "it is told why", PATIENCE).split()
    place.report("blue", "waits", phase="Succeeded")


def test_no_user_submits_in_the_name_of_another(place: Installation) -> None:
    runs = f"{API}/namespaces/blue/runs"
    body = {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": "forged"},
        "spec": {"user": "alice", "suspend": True, "roles": [{"command": ["true"]}]},
    }  # fmt: skip
    bob = as_user(place.plane, "bob")
    refused = bob.post(runs, body)
    assert refused.status == 403, refused.summary
    assert 'spec.user of a Run must be \\"bob\\"' in refused.body.decode()
    body["spec"]["user"] = "bob"
    ok(bob.post(runs, body), 201)
    crons = f"{API}/namespaces/blue/cronruns"
    template = {"spec": {"user": "alice", "roles": [{"command": ["true"]}]}}
    cron = {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "CronRun", "metadata": {"name": "forged"},
        "spec": {"schedule": "0 0 1 1 *", "template": template},
    }  # fmt: skip
    assert bob.post(crons, cron).status == 403


OTHER_JOB = {"spec": {"template": {"spec": {"roles": [{"command": ["false"]}]}}}}


def cron_of(name: str, **spec: object) -> dict[str, object]:
    template = {"spec": {"roles": [{"command": ["true"]}], **spec}}
    return {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "CronRun", "metadata": {"name": name},
        "spec": {"schedule": "0 0 1 1 *", "suspend": True, "template": template},
    }  # fmt: skip


def user_of(answer: rest.Answer) -> str:
    return str(ok(answer)["spec"]["template"]["spec"]["user"])


def test_a_changed_cron_run_counts_for_the_one_that_changed_it(place: Installation) -> None:
    crons = f"{API}/namespaces/blue/cronruns"
    path = f"{crons}/shared"
    bob, carol = (as_user(place.plane, name) for name in ("bob", "carol"))
    ok(bob.post(crons, cron_of("shared")), 201)
    waiting.until(
        lambda: user_of(carol.merge(path, OTHER_JOB, dryRun="All")) == "carol",
        "the policy is in force", PATIENCE,
    )  # fmt: skip
    assert user_of(carol.merge(path, {"spec": {"suspend": False}})) == "bob"
    assert user_of(carol.merge(path, {"spec": {"suspend": True}})) == "bob"
    assert user_of(carol.merge(path, {"metadata": {"labels": {"a": "b"}}})) == "bob"
    assert user_of(carol.merge(path, {"spec": {"schedule": "0 0 2 1 *"}})) == "carol"
    assert user_of(bob.merge(path, OTHER_JOB)) == "bob"
    assert user_of(place.rest.merge(path, {"spec": {"schedule": "0 0 3 1 *"}})) == "bob"
    nameless = {"spec": {"template": {"spec": {"user": None}}}}
    assert user_of(carol.merge(path, nameless)) == "carol"
    of_alice = {"spec": {"template": {"spec": {"user": "alice"}}}}
    assert carol.merge(path, of_alice).status == 403


def test_a_changed_cron_run_keeps_no_privileges_that_its_editor_lacks(place: Installation) -> None:
    crons = f"{API}/namespaces/blue/cronruns"
    ok(place.rest.post(crons, cron_of("urgent", user="bob", priority=90)), 201)
    carol = as_user(place.plane, "carol")
    refused = carol.merge(f"{crons}/urgent", OTHER_JOB)
    assert refused.status == 403
    assert "a priority above" in refused.summary
    ok(carol.merge(f"{crons}/urgent", {"spec": {"suspend": False}}))


def test_a_run_is_kept_for_the_ledger_and_its_user_deletes_it(place: Installation) -> None:
    ours = "windlass.dev/ledger"
    runs = f"{API}/namespaces/blue/runs"
    body = {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Run",
        "metadata": {"name": "kept", "finalizers": [ours, "example.org/mine"]},
        "spec": {"suspend": True, "roles": [{"command": ["true"]}]},
    }  # fmt: skip
    bob, path = as_user(place.plane, "bob"), f"{runs}/kept"
    ok(bob.post(runs, body), 201)
    removals = [{"metadata": {"finalizers": left}} for left in (None, [], ["example.org/mine"])]
    waiting.until(
        lambda: bob.merge(path, removals[0], dryRun="All").status == 403,
        "the policy is in force", PATIENCE,
    )  # fmt: skip
    for removal in removals:
        refused = bob.merge(path, removal)
        assert refused.status == 403
        assert "until its usage is recorded" in refused.summary
    ok(bob.merge(path, {"metadata": {"finalizers": [ours]}}))
    ok(bob.delete(path))
    waiting.until(lambda: place.rest.get(path).status == 404, "the ledger lets it go", PATIENCE)
    assert place.complaints() == []


# --- at the server's own door ---------------------------------------------------------------------


def direct(
    place: Installation, path: str, headers: dict[str, str], certificate: tuple[Path, Path] | None
) -> int:
    """A request to the server itself, past the API server."""
    url = urllib.parse.urlsplit(place.server_url)
    context = ssl._create_unverified_context()
    if certificate:
        context.load_cert_chain(*certificate)
    connection = http.client.HTTPSConnection(str(url.hostname), url.port, context=context)
    connection.request("GET", path, headers=headers)
    return connection.getresponse().status


FORGED = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}


def test_words_about_the_caller_count_only_from_the_api_server(place: Installation) -> None:
    path = f"{PLATFORM}/ps"
    assert direct(place, path, FORGED, None) == 401
    front = place.plane._front_proxy
    other = front.issue_client("somebody", "somebody")
    assert direct(place, path, FORGED, other) == 401, "signed, but not the front proxy's name"
    real = front.issue_client("front-proxy-2", "front-proxy-client")
    assert direct(place, path, FORGED, real) == 200
    cluster = place.plane._authority.issue_client("user-x", "admin", ["system:masters"])
    with pytest.raises((ssl.SSLError, ConnectionError)):
        direct(place, path, FORGED, cluster)


def test_a_pod_reads_its_own_runs_book_and_no_more(place: Installation, alice: Cli) -> None:
    for name in ("first", "second"):
        alice("submit", "-N", "red", "-n", name, "--cpus", "0.1", "--", "true")
        place.report("red", name, phase="Running", podIP="10.0.0.6")
        place.reaches("red", name, "Running")
    (pod,) = place.pods("red", "first")
    accounts = "/api/v1/namespaces/red/serviceaccounts/default/token"

    def token(audience: str) -> dict[str, str]:
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"]}
        spec = {"audiences": [audience], "expirationSeconds": 600, "boundObjectRef": bound}
        made = ok(place.rest.post(accounts, {"spec": spec}), 201)["status"]["token"]
        return {"Authorization": f"Bearer {made}"}

    mine = token("windlass")
    books = f"{PLATFORM}/namespaces/red/runs"
    assert direct(place, f"{books}/first/addresses?attempt=0", mine, None) == 200
    assert direct(place, f"{books}/second/addresses?attempt=0", mine, None) == 403
    for path in (f"{books}/first/why", f"{PLATFORM}/namespaces/red/ps", f"{books}/first/logs"):
        assert direct(place, path, mine, None) == 403, path
    other = token("https://kubernetes.default.svc")
    assert direct(place, f"{books}/first/addresses?attempt=0", other, None) == 401
    for name in ("first", "second"):
        place.report("red", name, phase="Succeeded")


def test_only_prometheus_reads_the_metrics_of_all_components(
    place: Installation, tmp_path: Path
) -> None:
    scraper = account_token(place, "monitoring", "prometheus")
    other = account_token(place, "red", "default")
    foreign = account_token(place, "monitoring", "prometheus", audience="elsewhere")
    engine = f"/api/v1/namespaces/{names.SYSTEM}/configmaps/engine"
    authority = ok(place.rest.get(engine))["data"]["authority"]
    trust = ssl.create_default_context(cadata=authority)
    pages = ""
    for part in place.parts:
        where = urllib.parse.urlsplit(part.metrics_url)
        name = f"windlass-{part.process.name}.{names.SYSTEM}.svc"
        statuses = []
        for token in (None, other, foreign, scraper):
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            status, page = scraped(where, name, trust, headers)
            statuses.append(status)
        assert statuses == [401, 403, 401, 200], part.process.name
        pages += page
        assert "windlass_" not in part.says("/metrics"), "not without a token"
    exposed = set(re.findall("^# TYPE (windlass_[a-z_]+) ", pages, re.MULTILINE))
    shown = json.dumps([monitoring.ALERTS, dashboard.queues_and_components()])
    named = {
        re.sub("_(bucket|sum|count)$", "", each) for each in re.findall("windlass_[a-z_]+", shown)
    }
    assert sorted(named - exposed) == []
    assert 'windlass_queue_admitted_workloads{queue="default"}' in pages
    assert 'windlass_queue_wait_seconds_count{queue="default"}' in pages


def account_token(place: Installation, namespace: str, name: str, audience: str = "") -> str:
    place.rest.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    place.rest.post(accounts, {"metadata": {"name": name}})
    spec = {"expirationSeconds": 600} | ({"audiences": [audience]} if audience else {})
    made = ok(place.rest.post(f"{accounts}/{name}/token", {"spec": spec}), 201)
    return str(made["status"]["token"])


def scraped(
    url: urllib.parse.SplitResult, name: str, trust: ssl.SSLContext, headers: dict[str, str]
) -> tuple[int, str]:
    """GET /metrics over a connection whose certificate is checked for the name of a Service."""
    plain = socket.create_connection((str(url.hostname), url.port or 0), 30)
    connection = http.client.HTTPConnection(str(url.hostname), url.port)
    with trust.wrap_socket(plain, server_hostname=name) as connection.sock:
        connection.request("GET", url.path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_another_authority_of_the_front_proxy_is_taken_up_without_a_restart(
    place: Installation,
) -> None:
    before = place.plane._front_proxy
    pid = next(part.process.pid for part in place.parts if part.process.name == "server")
    place.plane.replace_front_proxy()
    path = f"{PLATFORM}/namespaces/red/ps"
    alice = as_user(place.plane, "alice")
    waiting.until(lambda: alice.get(path).status == 200, "it answers again", PATIENCE)
    assert place.plane._front_proxy is not before
    server = next(part.process for part in place.parts if part.process.name == "server")
    assert server.alive
    assert server.pid == pid
    stranger = Authority(place.folder, "nobodys").issue_client("front", "front-proxy-client")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        direct(place, path, FORGED, stranger)
