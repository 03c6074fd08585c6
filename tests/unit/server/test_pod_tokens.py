"""A pod's token opens its own run's code, and nothing else; access to the route that makes one."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.server.conftest import Served
from windlass.kinds import registry
from windlass.server.apiserver.discovery import REVIEWS
from windlass.server.auth import pod_tokens
from windlass.server.auth.identity import AUTHENTICATED, NODE_PREFIX, NODES
from windlass.server.platform.handlers import blobs
from windlass.store.embedded.client import EmbeddedStore

RUNS = "/apis/windlass.dev/v1alpha1/namespaces/default/runs"
PODS = "/api/v1/namespaces/default/pods"
CODE, OTHER = b"mine", b"somebody's"


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


async def a_run_with_a_pod(served: Served, name: str = "job") -> dict[str, Any]:
    spec = {"roles": [{"command": ["true"]}], "code": {"digest": digest(CODE)}}
    owner = await served.call("POST", RUNS, {"metadata": {"name": name}, "spec": spec})
    reference = {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "name": name,
        "uid": owner.body["metadata"]["uid"], "controller": True,
    }  # fmt: skip
    body = {
        "metadata": {"name": f"{name}-0", "ownerReferences": [reference]},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
    }
    pod: dict[str, Any] = (await served.call("POST", PODS, body)).body
    return pod


async def request(
    served: Served, pod: dict[str, Any], token: str | None = None, **spec: Any
) -> Any:
    bound = {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    body = {"spec": {"audiences": ["windlass"], "boundObjectRef": bound, **spec}}
    path = "/api/v1/namespaces/default/serviceaccounts/default/token"
    return await served.call("POST", path, body, token=token)


async def a_token(served: Served, pod: dict[str, Any]) -> str:
    return str((await request(served, pod)).body["status"]["token"])


async def put(served: Served, content: bytes) -> str:
    path = blobs.path_of("default", digest(content))
    headers = {"Upload-Offset": "0", "Upload-Length": str(len(content))}
    assert (await served.call("PATCH", path, data=content, headers=headers)).code == 204
    return path


async def test_a_pod_reads_the_code_of_its_own_run_and_no_other(served: Served) -> None:
    token = await a_token(served, await a_run_with_a_pod(served))
    mine, other = await put(served, CODE), await put(served, OTHER)
    assert (await served.call("GET", mine, token=token)).body == CODE.decode()
    assert (await served.call("GET", other, token=token)).code == 403
    for method in ("HEAD", "PATCH"):
        assert (await served.call(method, mine, token=token)).code == 403


async def test_a_pod_may_do_nothing_else_whatever_is_bound_to_its_account(served: Served) -> None:
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": "default"}
    everyone = {"kind": "Group", "name": AUTHENTICATED, "apiGroup": "rbac.authorization.k8s.io"}
    role = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "windlass-admin",
    }
    made = await served.call(
        "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {"metadata": {"name": "all"}, "subjects": [subject, everyone], "roleRef": role},
    )  # fmt: skip
    assert made.code == 201
    user = await served.user("alice")
    while (await served.call("GET", PODS, token=user)).code != 200:
        pass  # the binding has come through the watch
    pod = await a_run_with_a_pod(served)
    token = await a_token(served, pod)
    for kind in registry.ALL:
        path = kind.resource.path("default" if kind.resource.namespaced else "")
        for method in ("GET", "POST", "DELETE"):
            answer = await served.call(method, path, {} if method == "POST" else None, token=token)
            assert answer.code in (403, 405), (method, path, answer)
    own = f"{PODS}/{pod['metadata']['name']}"
    for path in (own, f"{own}/log", f"{own}/status", f"{RUNS}/job", "/api", "/apis", "/metrics",
                 "/openapi/v3"):  # fmt: skip
        assert (await served.call("GET", path, token=token)).code == 403, path
    for review in REVIEWS:
        path = f"/apis/{review.group}/{review.version}/{review.plural}"
        assert (await served.call("POST", path, {"spec": {}}, token=token)).code == 403
    assert (await request(served, pod, token)).code == 403, "nor make another token"


async def test_a_token_ends_with_its_time_its_pod_and_its_key(served: Served) -> None:
    pod = await a_run_with_a_pod(served)
    token = await a_token(served, pod)
    path = await put(served, CODE)
    meta = pod["metadata"]
    tokens = served.app._access.pods
    claims = pod_tokens.Claims(
        "default", meta["name"], meta["uid"], "default", int(time.time()) - 1
    )
    other_key = pod_tokens.PodTokens(EmbeddedStore(served.api), b"x" * 32)
    good = pod_tokens.Claims("default", meta["name"], meta["uid"], "default", int(time.time()) + 99)
    bad = [
        tokens.sign(claims),
        other_key.sign(good),
        token[:-1],
        token + "x",
        "wp_",
        "wp_.",
        "wp_é",
    ]
    for each in bad:
        assert await tokens.identify(each) is None, each
    assert await tokens.identify(tokens.sign(good)) is not None
    ended = {"status": {"phase": "Succeeded"}}
    merge = {"Content-Type": "application/merge-patch+json"}
    await served.call("PATCH", f"{PODS}/{meta['name']}/status", ended, headers=merge)
    assert (await served.call("GET", path, token=token)).code == 401
    await served.call("DELETE", f"{PODS}/{meta['name']}?gracePeriodSeconds=0")
    assert (await served.call("GET", path, token=token)).code == 401


async def test_a_node_gets_tokens_for_its_own_pods_only(served: Served) -> None:
    pod = await a_run_with_a_pod(served)
    mine, other = [await served.user(NODE_PREFIX + name, NODES) for name in ("n1", "n2")]
    issued = await request(served, pod, mine, expirationSeconds=600)
    assert issued.code == 201
    assert issued.body["status"]["token"].startswith("wp_")
    assert (await request(served, pod, other)).code == 403
    assert (await request(served, pod, await served.user("alice"))).code == 403


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"audiences": ["other"]}, 422),
        ({"expirationSeconds": 1}, 422),
        ({"boundObjectRef": None}, 422),
        ({"boundObjectRef": {"kind": "Secret", "name": "x"}}, 422),
        ({"boundObjectRef": {"kind": "Pod", "name": "none"}}, 404),
        ({"boundObjectRef": {"kind": "Pod", "name": "job-0", "uid": "another"}}, 404),
    ],
)
async def test_other_requests_are_refused(served: Served, spec: dict[str, Any], code: int) -> None:
    pod = await a_run_with_a_pod(served)
    assert (await request(served, pod, **spec)).code == code


def test_the_key_stays(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = pod_tokens.ensure_key(path)
    assert pod_tokens.ensure_key(path) == key
    assert path.stat().st_mode & 0o777 == 0o600
