"""Tokens over the API: who may make, see and end which, and that an ended one opens nothing."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest

from tests.unit.server.conftest import Answer, Served
from windlass.server.auth import bearer_tokens

PATH = "/apis/platform.windlass.dev/v1alpha1/tokens"
EVERYWHERE = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


async def make(served: Served, token: str | None = None, **body: Any) -> Answer:
    return await served.call("POST", PATH, body, token=token)


async def admin_of_teams(served: Served, user: str = "ada") -> str:
    """Somebody with the role windlass-admin everywhere, who is not the machine's owner."""
    role = {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "windlass-admin",
    }
    body = {
        "metadata": {"name": "admins"}, "roleRef": role,
        "subjects": [{"kind": "User", "name": user}],
    }  # fmt: skip
    assert (await served.call("POST", EVERYWHERE, body)).code == 201
    return await served.user(user)


async def test_a_token_works_is_listed_without_its_secret_and_ends_at_once(served: Served) -> None:
    made = (await make(served, user="alice", ttl="1h", note="laptop")).body
    listed = (await served.call("GET", PATH, token=made["token"])).body["items"]
    assert [(each["user"], each["note"]) for each in listed] == [("alice", "laptop")]
    assert "token" not in listed[0]
    assert "hash" not in listed[0]
    assert (await served.call("DELETE", f"{PATH}/{made['id']}")).code == 200
    assert (await served.call("GET", PATH, token=made["token"])).code == 401


async def test_people_see_and_end_their_own_tokens_and_make_none(served: Served) -> None:
    alice, bob = await served.user("alice"), await served.user("bob")
    own = (await served.call("GET", PATH, token=alice)).body["items"]
    assert {each["user"] for each in own} == {"alice"}
    assert (await make(served, alice, user="alice")).code == 403
    foreign = bob.split("_")[1]
    refused = await served.call("DELETE", f"{PATH}/{foreign}", token=alice)
    missing = await served.call("DELETE", f"{PATH}/0123456789ab", token=alice)
    assert refused.code == missing.code == 403
    assert refused.body["message"].replace(foreign, "X") == (
        missing.body["message"].replace("0123456789ab", "X")
    )
    assert (await served.call("DELETE", f"{PATH}/{own[0]['id']}", token=alice)).code == 200
    assert (await served.call("GET", PATH, token=alice)).code == 401


async def test_an_admin_of_teams_cannot_become_or_lock_out_the_owner(served: Served) -> None:
    ada = await admin_of_teams(served)
    assert (await make(served, ada, user="carol")).code == 201
    assert (await make(served, ada, user="x", groups=["system:masters"])).code == 422
    assert (await make(served, ada, user="system:node:n1")).code == 422
    seen = (await served.call("GET", PATH, token=ada)).body["items"]
    assert not any(group.startswith("system:") for each in seen for group in each["groups"])
    owner = served.token.split("_")[1]
    assert (await served.call("DELETE", f"{PATH}/{owner}", token=ada)).code == 404
    assert (await served.call("GET", PATH)).code == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "user"),
        ({"user": "a,b"}, "user"),
        ({"user": "a\nb"}, "user"),
        ({"user": "x" * 300}, "user"),
        ({"user": "x", "ttl": "soon"}, "ttl"),
        ({"user": "x", "ttl": "9999999d"}, "ttl"),
        ({"user": "x", "groups": "team"}, "groups"),
    ],
)
async def test_an_invalid_token_is_reported_by_field(
    served: Served, body: dict[str, Any], field: str
) -> None:
    refused = await make(served, **body)
    assert refused.code == 422
    assert refused.body["details"]["causes"][0]["field"] == field


async def test_pods_nodes_and_strangers_have_no_business_with_tokens(served: Served) -> None:
    node = await served.user("system:node:n1", "system:nodes")
    assert (await served.call("GET", PATH, token=node)).code == 403
    assert (await served.call("GET", PATH, token="wl_0_x")).code == 401


async def test_tokens_that_ended_long_ago_are_removed_and_no_others(served: Served) -> None:
    fresh = await bearer_tokens.create_token(served.api, "alice", (), datetime.timedelta(days=-1))
    old = await bearer_tokens.create_token(served.api, "alice", (), datetime.timedelta(days=-31))
    gone = await bearer_tokens.sweep(served.api, time.time())
    assert gone == [bearer_tokens.id_of(old)]
    left = {each["id"] for each in await bearer_tokens.list_tokens(served.api)}
    assert left == {bearer_tokens.id_of(fresh), bearer_tokens.id_of(served.token)}


async def test_a_rotated_token_is_replaced_by_one_of_the_same_user_and_lifetime(
    served: Served,
) -> None:
    old = (await make(served, user="alice", ttl="2h", note="ci", groups=["ops"])).body
    rotated = await served.call("POST", f"{PATH}/{old['id']}/rotate", token=old["token"])
    assert rotated.code == 201
    new = rotated.body
    assert (new["user"], new["groups"], new["note"], new["replaces"]) == (
        "alice", ["ops"], "ci", old["id"],
    )  # fmt: skip
    assert (await served.call("GET", PATH, token=old["token"])).code == 401
    assert (await served.call("GET", PATH, token=new["token"])).code == 200
    lasts = [
        datetime.datetime.fromisoformat(each["expires"])
        - datetime.datetime.fromisoformat(each["created"])
        for each in (old, new)
    ]
    assert abs(lasts[0] - lasts[1]) <= datetime.timedelta(seconds=1)
    assert (await served.call("POST", f"{PATH}/{old['id']}/rotate")).code == 404


async def test_no_user_rotates_tokens_of_others_or_of_the_engine(served: Served) -> None:
    alice, bob = await served.user("alice"), await served.user("bob")
    node = await served.user("system:node:n1", "system:nodes")
    foreign = bob.split("_")[1]
    refused = await served.call("POST", f"{PATH}/{foreign}/rotate", token=alice)
    missing = await served.call("POST", f"{PATH}/0123456789ab/rotate", token=alice)
    assert refused.code == missing.code == 403
    assert refused.body["message"].replace(foreign, "X") == (
        missing.body["message"].replace("0123456789ab", "X")
    )
    assert (await served.call("GET", PATH, token=bob)).code == 200
    own = node.split("_")[1]
    assert (await served.call("POST", f"{PATH}/{own}/rotate", token=node)).code == 403
    assert (await served.call("POST", f"{PATH}/{own}/rotate")).code == 409


async def test_an_expired_token_is_not_made_valid_again(served: Served) -> None:
    over = await bearer_tokens.create_token(served.api, "bob", (), datetime.timedelta(seconds=-1))
    assert (await served.call("POST", f"{PATH}/{over.split('_')[1]}/rotate")).code == 409
