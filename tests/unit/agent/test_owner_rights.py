"""Pods that were started while the owner was alone, and users who come later."""

import contextlib
import json

import pytest

from tests.unit.agent import nodes
from windlass.agent.api.owner_rights import OwnerRights
from windlass.agent.node import privileges, single_tenant
from windlass.kinds import codec
from windlass.kinds.annotations import HELD
from windlass.kinds.types import core, meta
from windlass.store import errors

pytestmark = nodes.as_root
ABLE = privileges.Abilities("user", mounts=True)
BINDING, CLUSTER_BINDING = core.RoleBinding.resource, core.ClusterRoleBinding.resource


@pytest.fixture
async def alone(node):
    """An agent that isolates namespaces; the owner is the only user of `default`."""
    await node.store.create(core.Namespace(metadata=meta.ObjectMeta(name="default")))
    held = {HELD: json.dumps(ABLE.summary())}
    await node.store.create(core.Node(metadata=meta.ObjectMeta(name="n1", annotations=held)))
    async with contextlib.AsyncExitStack() as stack:
        users = privileges.NamespaceUsers(node.folder)
        check = single_tenant.SingleTenantCheck(node.store, users)
        await stack.enter_async_context(check.watching())
        await node.restart(abilities=ABLE, user_of=check.user_of)
        node.check = check
        node.rights = OwnerRights(node.store, node.folder)
        yield node


async def start(node, script: str, **spec) -> core.Pod:
    container = core.Container(name="c", image=nodes.HOST, command=["sh", "-c", script])
    made = core.Pod(
        metadata=meta.ObjectMeta(name="p", namespace="default"),
        spec=core.PodSpec(node_name="n1", containers=[container],
                          **{"restart_policy": "Never", **spec}),
    )  # fmt: skip
    return await node.store.create(made)


async def until(node, check) -> core.Pod:
    listed = await node.store.list(core.Pod, "default")
    for pod in listed.items:
        if check(pod):
            return pod
    watched = node.store.watch(core.Pod, "default", resource_version=listed.resource_version)
    async for event in watched:
        if event.type != "BOOKMARK" and check(event.object):
            return event.object
    raise AssertionError("the watch ended")


def running(pod: core.Pod) -> bool:
    return pod.status.phase == "Running"


def body(role: str = "windlass-member") -> dict:
    return {"roleRef": {"kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "name": "eve"}]}  # fmt: skip


async def bind(node) -> None:
    ref = core.RoleRef(kind="ClusterRole", name="windlass-member")
    await node.store.create(
        core.RoleBinding(
            metadata=meta.ObjectMeta(name="b", namespace="default"), role_ref=ref,
            subjects=[core.Subject(kind="User", name="eve")],
        )
    )  # fmt: skip


async def session(node, pod) -> None:
    await node.rights.check_session(codec.to_dict(pod), await node.store.get(core.Node, "n1"))


async def test_a_later_member_does_not_enter_a_pod_with_the_owners_rights(alone):
    await start(alone, "id -u; while :; do sleep 0.02; done")
    pod = await until(alone, running)
    await session(alone, pod)  # no other user can ask
    await bind(alone)
    with pytest.raises(errors.Forbidden, match="rights of the engine's owner"):
        await session(alone, pod)


async def test_a_member_enters_a_pod_with_the_rights_of_its_namespace(alone):
    await bind(alone)
    while alone.check.user_of("default") is None:
        await nodes.asyncio.sleep(0.01)
    await start(alone, "while :; do sleep 0.02; done")
    await session(alone, await until(alone, running))


@pytest.mark.parametrize(
    ("resource", "change", "refused"),
    [
        (BINDING, body(), True),
        (CLUSTER_BINDING, body("windlass-admin"), True),
        (BINDING, body("windlass-viewer"), False),
        (CLUSTER_BINDING, body("windlass-viewer"), False),
        (BINDING, body() | {"subjects": []}, False),
    ],
)
async def test_no_user_gets_rights_in_default_while_a_pod_of_the_owner_runs(
    alone, resource, change, refused
):
    await start(alone, "while :; do sleep 0.02; done")
    await until(alone, running)
    if not refused:
        await alone.rights.check_binding(resource, "default", "", change)
        return
    with pytest.raises(errors.Invalid, match="windlass stop"):
        await alone.rights.check_binding(resource, "default", "", change)


@pytest.mark.parametrize(
    "patch",
    [
        {"subjects": body()["subjects"]},
        [{"op": "add", "path": "/subjects", "value": body()["subjects"]}],
        [{"op": "replace", "path": "/subjects/0", "value": body()["subjects"][0]}],
        [{"op": "copy", "from": "/metadata/annotations/x", "path": "/subjects"}],
    ],
)
async def test_a_patch_that_adds_users_is_refused_as_well(alone, patch):
    ref = core.RoleRef(kind="ClusterRole", name="windlass-member")
    empty = meta.ObjectMeta(name="b", namespace="default")
    await alone.store.create(core.RoleBinding(metadata=empty, role_ref=ref))
    await start(alone, "while :; do sleep 0.02; done")
    await until(alone, running)
    with pytest.raises(errors.Invalid):
        await alone.rights.check_binding(BINDING, "default", "b", patch)
    await alone.rights.check_binding(BINDING, "team", "b", patch)


async def test_users_come_when_the_pods_of_the_owner_have_ended(alone):
    await start(alone, "true")
    await until(alone, lambda pod: pod.status.phase == "Succeeded")
    await alone.rights.check_binding(BINDING, "default", "", body())


async def test_nothing_more_of_a_pod_is_started_with_the_owners_rights(alone):
    """A restarted container would read Secrets and ConfigMaps that members may change."""
    script = f"echo x >> {alone.folder}/starts; until test -e {alone.folder}/go; do :; done; exit 1"
    await start(alone, script, restart_policy="OnFailure")
    await until(alone, running)
    await alone.there(alone.folder / "starts")
    await bind(alone)
    while alone.check.user_of("default") is None:
        await nodes.asyncio.sleep(0.01)
    (alone.folder / "go").touch()
    pod = await until(alone, lambda pod: pod.status.phase == "Failed")
    assert pod.status.reason == "RightsChanged"
    assert (alone.folder / "starts").read_text() == "x\n"
