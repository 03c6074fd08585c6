"""No way into another team: every verb on every kind and path, as each caller without the right.

Kinds and subresources come from the server's own discovery, the other paths from its own table
(`server.platform.routes`), which it serves nothing beside. So whatever is added is tried here, and
must be refused unless it is written down below that it is for these callers.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yarl

from tests.fuzz import samples
from tests.unit.server.conftest import Answer, Served
from windlass.kinds import registry
from windlass.server.auth import bearer_tokens
from windlass.server.auth.pod_tokens import Claims
from windlass.server.http import streams
from windlass.server.platform import routes
from windlass.server.platform.router import Router

HERE, THERE = "red", "blue"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
READS = ("GET", "HEAD")
DIGEST = "sha256:" + "1" * 64
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings"
PUBLIC_KINDS = {
    "queues.windlass.dev", "nodes", "priorityclasses.scheduling.k8s.io", "pricelists.windlass.dev",
    "reservations.windlass.dev",
}  # fmt: skip
"""Everybody may read these: what is shared, how full it is, and what it costs."""
VIEWED_KINDS = {
    "runs.windlass.dev", "cronruns.windlass.dev", "pods", "configmaps", "services", "events",
    "runs.windlass.dev/status", "cronruns.windlass.dev/status", "pods/status", "pods/log",
}  # fmt: skip
VIEWED_PATHS = (
    "/ps",
    "/externalpods",
    "/why",
    "/logs",
    "/steps",
    "/studies",
    "/studies/{study}",
    "/studies/{study}/trials",
    "/logs/{log}",
    "/addresses",
    "/usage",
    "/statement",
    "/pods",
    "/pods/{pod}",
    "/podmetrics",
    "/podmetrics/{pod}",
)
"""Ends of the paths that a viewer of the team itself may read."""


@dataclasses.dataclass(frozen=True)
class Try:
    """One path, with a name that exists and with one that does not."""

    what: str
    existing: str
    missing: str
    kind: str = ""
    """The key of the resource, for objects."""
    who: str = ""
    """The table's word, for other paths."""
    methods: tuple[str, ...] = METHODS
    namespaced: bool = True


@dataclasses.dataclass(frozen=True)
class Caller:
    name: str
    token: str
    known: bool = True


# --- the world ----------------------------------------------------------------------------------


async def team(served: Served, name: str, **people: str) -> None:
    """A namespace with one object of every kind, called `there`, and people with roles."""
    await served.team(name)
    for role, user in people.items():
        body = {
            "metadata": {"name": f"{role}s"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                        "name": f"windlass-{role}"},
            "subjects": [{"kind": "User", "name": user}],
        }  # fmt: skip
        assert (await served.call("POST", BINDINGS.format(name), body)).code == 201
    for kind in registry.ALL:
        resource = kind.resource
        if not resource.namespaced:
            continue
        body = samples.sample(resource, "there")
        body["metadata"] = {"name": "there", "namespace": name}
        if resource.key == "events":
            body["involvedObject"]["namespace"] = name
        made = await served.call("POST", resource.path(name), body)
        assert made.code == 201, (resource.key, made.body)


async def callers(served: Served) -> list[Caller]:
    """Callers without rights in the team `blue`, and its own viewer."""
    await team(served, HERE, member="rita", admin="ada")
    await team(served, THERE, member="bob", viewer="vic")
    over = await bearer_tokens.create_token(served.api, "bob", (), datetime.timedelta(seconds=-1))
    ended = await served.user("bob")
    await bearer_tokens.revoke_token(served.api, ended.split("_")[1])
    pod = (await served.call("GET", f"/api/v1/namespaces/{HERE}/pods/there")).body
    claims = Claims(HERE, "there", pod["metadata"]["uid"], "default", 1 << 40)
    return [
        Caller("another team's member", await served.user("rita")),
        Caller("another team's admin", await served.user("ada")),
        Caller("in no team", await served.user("nora")),
        Caller("the team's viewer", await served.user("vic")),
        Caller("another team's pod", served.app._access.pods.sign(claims)),
        Caller("an expired token", over, known=False),
        Caller("a revoked token", ended, known=False),
        Caller("a token that was made up", "wl_0123456789ab_" + "x" * 43, known=False),
        Caller("nobody", "", known=False),
    ]


async def tries(served: Served) -> list[Try]:
    found = [each for path in await _group_paths(served) for each in await _of_group(served, path)]
    box = await served.call(
        "POST", f"{routes.ROOT}/namespaces/{THERE}/mailboxes", token=await served.user("bob")
    )
    assert box.code == 201, box.body
    values = {
        "namespace": (THERE, THERE), "run": ("there", "gone"), "log": ("there-0", "gone-0"),
        "digest": (DIGEST, DIGEST.replace("1", "2")), "box": (box.body["name"], "0" * 24),
        "key": ("0", "1"), "token": (served.token.split("_")[1], "0123456789ab"),
        "node": ("there", "gone"), "pod": ("there", "gone"),
        "container": ("worker", "gone"), "number": ("0", "1"),
        "stepkey": ("a" * 64, "b" * 64), "study": ("lr", "none"),
    }  # fmt: skip
    for route in routes.ROUTES:
        names = re.findall(r"{(\w+)}", route.template)
        existing, missing = (
            route.template.format(**{name: values[name][number] for name in names})
            for number in (0, 1)
        )
        found.append(
            Try(route.template, existing, missing, who=route.audience, methods=route.methods)
        )
    found.append(Try("/metrics", "/metrics", "/metrics", who="platform", methods=("GET",)))
    return found


async def _group_paths(served: Served) -> list[str]:
    groups = (await served.call("GET", "/apis")).body["groups"]
    versions = [each["groupVersion"] for group in groups for each in group["versions"]]
    return ["/api/v1", *(f"/apis/{version}" for version in versions)]


async def _of_group(served: Served, path: str) -> list[Try]:
    found = []
    for entry in (await served.call("GET", path)).body["resources"]:
        plural, _, below = entry["name"].partition("/")
        key = next(
            (k.resource.key for k in registry.ALL
             if k.resource.plural == plural and k.resource.path("").startswith(path + "/")), "",
        )  # fmt: skip
        if not key:
            continue  # reviews of oneself, and the platform's services: in the table of routes
        base = f"{path}/namespaces/{THERE}/{plural}" if entry["namespaced"] else f"{path}/{plural}"
        key = f"{key}/{below}" if below else key
        name, suffix = _name_of(plural), f"/{below}" if below else ""
        spaced = entry["namespaced"]
        found.append(
            Try(key, f"{base}/{name}{suffix}", f"{base}/gone{suffix}", key, namespaced=spaced)
        )
        if not below:
            found.append(Try(f"{key} (all)", base, base, key, namespaced=spaced))
            if spaced:
                everywhere = f"{path}/{plural}"
                found.append(Try(f"{key} (everywhere)", everywhere, everywhere, key))
    return found


def _name_of(plural: str) -> str:
    return THERE if plural == "namespaces" else "there"


# --- what may be answered -----------------------------------------------------------------------


def allowed(caller: Caller, each: Try, method: str) -> bool:
    """What is written down: everything else must be refused."""
    if not caller.known or caller.name == "another team's pod":
        return False
    if any(r.template == each.what and r.audience == "everyone" for r in routes.ROUTES):
        return method in READS
    if each.kind:
        if each.kind in PUBLIC_KINDS:
            return method in READS
        if caller.name == "the team's viewer" and "(everywhere)" not in each.what:
            if each.kind == "namespaces":
                return method in READS and "(all)" not in each.what
            return method in READS and each.kind in VIEWED_KINDS
        return False
    return (
        caller.name == "the team's viewer"
        and any(r.template == each.what and r.audience == "team" for r in routes.ROUTES)
        and method in READS
        and each.what.endswith(VIEWED_PATHS)
    )


async def ask(served: Served, method: str, path: str, token: str) -> Answer:
    body: Any = None if method in ("GET", "HEAD", "OPTIONS", "DELETE") else {}
    content = "application/merge-patch+json" if method == "PATCH" else "application/json"
    watch = {"headers": {"Content-Type": content}}
    return await served.call(method, path, body, token=token, **watch)


def told(answer: Answer, each: Try) -> tuple[Any, ...]:
    """The answer without the name that was asked for."""
    text = json.dumps(answer.body, sort_keys=True)
    pairs = zip(each.existing.split("/"), each.missing.split("/"), strict=True)
    for name in {name for pair in pairs if len(set(pair)) > 1 for name in pair}:
        text = text.replace(name, "X")
    headers = {k: v for k, v in answer.headers.items() if k not in ("Date", "Content-Length")}
    return answer.code, text, sorted(headers.items())


async def test_a_user_without_the_right_is_refused_audited_and_learns_nothing(
    served: Served, tmp_path: Path
) -> None:
    refused: collections.Counter[int] = collections.Counter()
    problems = []
    everybody, everything = await callers(served), await tries(served)
    before = audited(served, tmp_path)
    for caller in everybody:
        for each in everything:
            for method in METHODS if each.kind else dict.fromkeys((*each.methods, *METHODS)):
                if allowed(caller, each, method):
                    continue
                first = await ask(served, method, each.existing, caller.token)
                second = await ask(served, method, each.missing, caller.token)
                refused.update(a.code for a in (first, second) if a.code in (401, 403))
                where = f"{caller.name}: {method} {each.what}"
                fine = (401,) if not caller.known else (403, 405)
                if each.who == "mailbox":
                    fine = (401, 405)
                if first.code not in fine or second.code not in fine:
                    problems.append(f"{where}: answered {first.code} and {second.code}")
                elif told(first, each) != told(second, each):
                    problems.append(f"{where}: {told(first, each)} is not {told(second, each)}")
    assert not problems, f"{len(problems)} ways in:\n" + "\n".join(problems[:40])
    assert sum(refused.values()) > 2000
    assert audited(served, tmp_path) - before == refused


def audited(served: Served, folder: Path) -> collections.Counter[int]:
    """Refusals in the audit log, by code."""
    served.app._audit.flush()
    lines = [json.loads(line) for line in (folder / "audit.log").read_text().splitlines()]
    return collections.Counter(line["code"] for line in lines if line["code"] in (401, 403))


async def test_the_same_paths_are_open_to_users_with_the_right(served: Served) -> None:
    """Or the test above would prove nothing."""
    await callers(served)
    bob, vic = await served.user("bob"), await served.user("vic")
    opened = 0
    for each in await tries(served):
        if not each.namespaced or "(everywhere)" in each.what:
            continue
        if each.kind and each.kind.partition("/")[0] in VIEWED_KINDS and "/" not in each.kind:
            for token in (bob, vic):
                answer = await ask(served, "GET", each.existing, token)
                assert answer.code == 200, (each.what, answer.body)
                opened += 1
        if each.who == "team" and "GET" in each.methods and each.what.endswith(("/ps", "/why")):
            assert (await ask(served, "GET", each.existing, vic)).code == 200, each.what
            opened += 1
    assert opened > 20
    assert (await ask(served, "GET", f"/api/v1/namespaces/{THERE}/secrets/there", bob)).code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/%62lue/secrets", "/api/v1/namespaces/red/../blue/secrets",
        "/api/v1/namespaces/red/%2e%2e/blue/secrets", "//api/v1/namespaces/blue/secrets",
        "/api/v1/namespaces/blue/secrets/", "/api/v1/namespaces/blue//secrets",
        "/api/v1/namespaces/blue%2Fsecrets", "/API/v1/namespaces/blue/secrets",
        "/api/v1/secrets?fieldSelector=metadata.namespace%3Dblue",
        "/api/v1/namespaces/red/secrets/..%2F..%2Fblue%2Fsecrets%2Fthere",
        "/apis/platform.windlass.dev/v1alpha1/namespaces/red%2F..%2Fblue/ps",
        "/apis/platform.windlass.dev/v1alpha1/namespaces/red/runs/..%2F..%2Fblue%2Fruns%2Fthere/why",
        "/apis/platform.windlass.dev/v1alpha1/namespaces/red/runs/there/logs/..%2F..%2Fblue",
    ],
)  # fmt: skip
async def test_paths_that_want_to_be_read_differently_open_nothing(
    served: Served, path: str
) -> None:
    await callers(served)
    url = yarl.URL(served.url + path, encoded=True)
    headers = {"Authorization": f"Bearer {await served.user('rita')}"}
    async with served.session.get(url, headers=headers, allow_redirects=False) as answer:
        assert answer.status in (403, 404), await answer.text()
        text = await answer.text()
    for word in ("AAA=", "train.py", '"items"'):
        assert word not in text


async def test_no_user_acts_as_another(served: Served) -> None:
    await callers(served)
    headers = {"Impersonate-User": "bob"}
    for token in (await served.user("rita"), await served.user("ada"), "", "wl_no_no"):
        path = f"/api/v1/namespaces/{THERE}/secrets"
        answer = await served.call("GET", path, token=token, headers=headers)
        assert answer.code in (401, 403)


async def test_a_path_that_is_not_in_the_table_is_not_served(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{routes.ROOT}/queues"
    assert (await served.call("GET", path)).code == 200
    platform = served.app._platform
    rest = tuple(each for each in routes.ROUTES if each.template != path)
    shorter = Router(rest, platform.services, platform.router._authorizers)
    monkeypatch.setattr(platform, "match", shorter.match)
    assert (await served.call("GET", path)).code == 404


@pytest.mark.parametrize("how", ["token", "role"])
async def test_a_user_who_loses_the_right_loses_the_open_watch(
    served: Served, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(streams, "RIGHTS_SECONDS", 0.0)
    monkeypatch.setattr(streams, "_POLL_SECONDS", 0.05)
    await team(served, THERE, member="bob")
    bob = await served.user("bob")
    url = f"{served.url}/api/v1/namespaces/{THERE}/pods?watch=1"
    async with served.session.get(url, headers={"Authorization": f"Bearer {bob}"}) as answer:
        assert b"ADDED" in await answer.content.readline()
        if how == "token":
            path = f"{routes.ROOT}/tokens/{bob.split('_')[1]}"
        else:
            path = f"{BINDINGS.format(THERE)}/members"
        assert (await served.call("DELETE", path)).code == 200
        assert await answer.content.read() == b""  # it ends, and nothing more was sent


async def test_owners_that_are_claimed_in_another_team_do_it_no_harm(served: Served) -> None:
    """Owner references and finalizers of one team's objects hold up nothing of others'."""
    await callers(served)
    rita = await served.user("rita")
    run = f"/apis/windlass.dev/v1alpha1/namespaces/{THERE}/runs/there"
    victim = (await served.call("GET", run)).body["metadata"]
    shared = {"metadata": {"name": "shared"}, "spec": {}}
    made = await served.call("POST", "/apis/windlass.dev/v1alpha1/queues", shared)
    queue = made.body["metadata"]
    owners = [
        {"apiVersion": "windlass.dev/v1alpha1", "kind": kind, "name": of["name"],
         "uid": of["uid"], "blockOwnerDeletion": True}
        for kind, of in (("Run", victim), ("Queue", queue))
    ]  # fmt: skip
    for number, owner in enumerate(owners):
        body = {"metadata": {"name": f"leech-{number}", "ownerReferences": [owner],
                             "finalizers": ["example.com/never"]}}  # fmt: skip
        made = await served.call("POST", f"/api/v1/namespaces/{HERE}/configmaps", body, token=rita)
        assert made.code in (201, 403, 422), made.body
        path = f"/api/v1/namespaces/{HERE}/configmaps/leech-{number}"
        await served.call("DELETE", path, token=rita)
    assert (await served.call("GET", run)).code == 200
    options = {"propagationPolicy": "Foreground"}
    path = "/apis/windlass.dev/v1alpha1/queues/shared"
    await served.call("DELETE", path, options)
    gone = await _eventually_gone(served, path)
    assert gone, "a team's finalizer holds up what all share"
    await served.call("DELETE", run, options)
    assert await _eventually_gone(served, run)


async def _eventually_gone(served: Served, path: str) -> bool:
    for _ in range(100):
        if (await served.call("GET", path)).code == 404:
            return True
        await asyncio.sleep(0.05)
    return False
