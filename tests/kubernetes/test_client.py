"""The Kubernetes back end of the object API against a real kube-apiserver."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.harness.control_plane import ControlPlane
from windlass.kinds import codec
from windlass.kinds.types import core
from windlass.kinds.types.core import ConfigMap, Namespace, Node, Pod, ServiceAccount
from windlass.kinds.types.meta import Object, ObjectMeta
from windlass.store import connect, errors
from windlass.store.interface import Preconditions
from windlass.store.kubernetes.client import KubernetesStore

pytestmark = pytest.mark.kubernetes

FINALIZER = "windlass.dev/test"


@pytest.fixture
async def store(control_plane: ControlPlane) -> AsyncIterator[KubernetesStore]:
    opened = connect.open_store(str(control_plane.kubeconfig))
    yield opened
    await opened.close()


@pytest.fixture
async def namespace(store: KubernetesStore) -> str:
    made = await store.create(Namespace(metadata=ObjectMeta(generate_name="client-")))
    async with asyncio.timeout(30):
        async for event in store.watch(ServiceAccount, made.name, initial_events=True):
            if event.object.name == "default":
                break
    return made.name


def config_map(namespace: str, name: str = "", value: str = "v", **metadata: Any) -> ConfigMap:
    meta = ObjectMeta(name=name, namespace=namespace, **metadata)
    return ConfigMap(metadata=meta, data={"value": value})


def pod(namespace: str, name: str, node: str = "", **spec: Any) -> dict[str, Any]:
    """With fields that our structs do not know."""
    container = {"name": "c", "image": "i", "securityContext": {"runAsUser": 7}, "tty": True}
    body = {"containers": [container], "dnsPolicy": "Default", "nodeName": node, **spec}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {key: value for key, value in body.items() if value},
    }


# --- objects ------------------------------------------------------------------------------------


async def test_create_names_the_object_and_get_finds_it(
    store: KubernetesStore, namespace: str
) -> None:
    made = await store.create(config_map(namespace, generate_name="made-"))
    assert made.name.startswith("made-")
    assert made.uid
    found = await store.get(ConfigMap, made.name, namespace)
    assert found == made
    with pytest.raises(errors.AlreadyExists):
        await store.create(config_map(namespace, made.name))


async def test_a_dry_run_writes_nothing(store: KubernetesStore, namespace: str) -> None:
    made = await store.create(config_map(namespace, "ghost"), dry_run=True)
    assert made.uid
    with pytest.raises(errors.NotFound):
        await store.get(ConfigMap, "ghost", namespace)
    kept = await store.create(config_map(namespace, "kept"))
    await store.patch(ConfigMap, "kept", namespace, patch={"data": {"value": "x"}}, dry_run=True)
    await store.delete(ConfigMap, "kept", namespace, dry_run=True)
    assert await store.get(ConfigMap, "kept", namespace) == kept


async def test_lists_are_selected_and_paged(store: KubernetesStore, namespace: str) -> None:
    for i in range(7):
        labels = {"parity": "odd" if i % 2 else "even"}
        await store.create(config_map(namespace, f"o{i}", labels=labels))
    even = await store.list(ConfigMap, namespace, label_selector="parity in (even),parity!=x")
    assert [obj.name for obj in even.items] == ["o0", "o2", "o4", "o6"]
    one = await store.list(ConfigMap, namespace, field_selector="metadata.name=o3")
    assert [obj.name for obj in one.items] == ["o3"]

    names: list[str] = []
    token = ""
    for _ in range(4):
        page = await store.list(
            ConfigMap, namespace, label_selector="parity", limit=2, continue_token=token
        )
        names += [obj.name for obj in page.items]
        token = page.continue_token
    assert names == [f"o{i}" for i in range(7)]
    assert token == ""


async def test_an_empty_list_has_a_version(store: KubernetesStore, namespace: str) -> None:
    listed = await store.list(Pod, namespace)
    assert listed.items == []
    assert int(listed.resource_version) > 0


async def test_a_large_list_is_whole(store: KubernetesStore, namespace: str) -> None:
    """More than one slice of the decoder."""
    names = [f"o{i:04}" for i in range(600)]
    for start in range(0, len(names), 60):
        batch = [store.create(config_map(namespace, name)) for name in names[start : start + 60]]
        await asyncio.gather(*batch)
    listed = await store.list(
        ConfigMap, namespace, field_selector="metadata.name!=kube-root-ca.crt"
    )
    assert [obj.name for obj in listed.items] == names


@pytest.mark.parametrize("how", ["get", "list", "watch"])
async def test_fields_we_do_not_know_survive_a_replace(
    store: KubernetesStore, namespace: str, how: str
) -> None:
    await store.raw(
        "POST",
        f"/api/v1/namespaces/{namespace}/pods",
        body=json.dumps(pod(namespace, "p")).encode(),
    )
    before = await raw_object(store, Pod, "p", namespace)
    read: dict[str, Callable[[], Any]] = {
        "get": lambda: store.get(Pod, "p", namespace),
        "list": lambda: listed_first(store, namespace),
        "watch": lambda: watched_first(store, namespace),
    }
    obj = await read[how]()
    obj.metadata.labels = {"app": "changed"}
    await store.replace(obj)
    after = await raw_object(store, Pod, "p", namespace)
    assert after["metadata"]["labels"] == {"app": "changed"}
    assert after["spec"] == before["spec"]
    assert after["spec"]["containers"][0]["securityContext"] == {"runAsUser": 7}


async def listed_first(store: KubernetesStore, namespace: str) -> Pod:
    return (await store.list(Pod, namespace)).items[0]


async def watched_first(store: KubernetesStore, namespace: str) -> Pod:
    async for event in store.watch(Pod, namespace, initial_events=True):
        return event.object
    raise AssertionError("the watch ended")


async def raw_object(
    store: KubernetesStore, kind: type[Object], name: str, namespace: str
) -> dict[str, Any]:
    status, _, body = await store.raw("GET", kind.resource.path(namespace, name))
    assert status == 200
    return dict(json.loads(body))


async def test_a_stale_replace_is_a_conflict(store: KubernetesStore, namespace: str) -> None:
    made = await store.create(config_map(namespace, "a"))
    await store.patch(ConfigMap, "a", namespace, patch={"data": {"value": "2"}})
    made.data = {"value": "3"}
    with pytest.raises(errors.Conflict):
        await store.replace(made)
    current = await store.get(ConfigMap, "a", namespace)
    assert current.data == {"value": "2"}
    current.data = {"value": "4"}
    assert (await store.replace(current)).data == {"value": "4"}


async def test_patches(store: KubernetesStore, namespace: str) -> None:
    await store.create(config_map(namespace, "a", labels={"x": "1", "y": "2"}))
    merged = await store.patch(
        ConfigMap, "a", namespace, patch={"metadata": {"labels": {"x": None, "z": "3"}}}
    )
    assert merged.metadata.labels == {"y": "2", "z": "3"}
    replaced = await store.patch(
        ConfigMap,
        "a",
        namespace,
        patch=[
            {"op": "test", "path": "/data/value", "value": "v"},
            {"op": "replace", "path": "/data/value", "value": "w"},
        ],
    )
    assert replaced.data == {"value": "w"}
    stale = {"metadata": {"resourceVersion": merged.metadata.resource_version}}
    with pytest.raises(errors.Conflict):
        await store.patch(ConfigMap, "a", namespace, patch=stale)
    wrong = {"metadata": {"labels": {"not ok": "1"}}}
    with pytest.raises(errors.Invalid) as refused:
        await store.patch(ConfigMap, "a", namespace, patch=wrong)
    assert {cause.field for cause in refused.value.causes} == {"metadata.labels"}


async def test_the_status_is_written_apart_from_the_rest(
    store: KubernetesStore, namespace: str
) -> None:
    await store.create(codec.from_dict(Pod, pod(namespace, "p")))
    patch = {"status": {"phase": "Running"}, "spec": {"activeDeadlineSeconds": 3}}
    patched = await store.patch(Pod, "p", namespace, patch=patch, subresource="status")
    assert patched.status.phase == "Running"
    patched.status.message = "by replace"
    patched.spec.active_deadline_seconds = 5
    replaced = await store.replace(patched, subresource="status")
    assert replaced.status.message == "by replace"
    assert replaced.spec.active_deadline_seconds is None


async def test_cluster_scoped_objects(store: KubernetesStore) -> None:
    node = await store.create(Node(metadata=ObjectMeta(generate_name="node-")))
    assert (await store.get(Node, node.name)).uid == node.uid
    assert await store.delete(Node, node.name) is None


# --- deleting -----------------------------------------------------------------------------------


async def test_deleting_answers_none_when_it_is_gone(
    store: KubernetesStore, namespace: str
) -> None:
    await store.create(config_map(namespace, "a"))
    await store.create(codec.from_dict(Pod, pod(namespace, "unbound")))
    assert await store.delete(ConfigMap, "a", namespace) is None
    assert await store.delete(Pod, "unbound", namespace) is None
    with pytest.raises(errors.NotFound):
        await store.delete(ConfigMap, "a", namespace)
    with pytest.raises(errors.NotFound):
        await store.get(Pod, "unbound", namespace)


async def test_deleting_answers_with_what_is_still_held(
    store: KubernetesStore, namespace: str
) -> None:
    await store.create(config_map(namespace, "a", finalizers=[FINALIZER]))
    held = await store.delete(ConfigMap, "a", namespace)
    assert held is not None
    assert held.metadata.deletion_timestamp
    await store.patch(ConfigMap, "a", namespace, patch={"metadata": {"finalizers": None}})
    with pytest.raises(errors.NotFound):
        await store.get(ConfigMap, "a", namespace)


async def test_a_pod_on_a_node_is_given_its_grace(store: KubernetesStore, namespace: str) -> None:
    await store.create(codec.from_dict(Pod, pod(namespace, "p", node="n1")))
    leaving = await store.delete(Pod, "p", namespace, grace_seconds=77)
    assert leaving is not None
    assert leaving.metadata.deletion_grace_period_seconds == 77
    assert await store.delete(Pod, "p", namespace, grace_seconds=0) is None
    with pytest.raises(errors.NotFound):
        await store.get(Pod, "p", namespace)


async def test_a_namespace_goes_away_in_its_own_time(
    store: KubernetesStore, namespace: str
) -> None:
    leaving = await store.delete(Namespace, namespace)
    assert leaving is not None
    assert leaving.status.phase == "Terminating"


async def test_preconditions_of_a_delete(store: KubernetesStore, namespace: str) -> None:
    made = await store.create(config_map(namespace, "a"))
    for wrong in (Preconditions(uid="other"), Preconditions(resource_version="1")):
        with pytest.raises(errors.Conflict):
            await store.delete(ConfigMap, "a", namespace, preconditions=wrong)
    right = Preconditions(uid=made.uid, resource_version=made.metadata.resource_version)
    assert await store.delete(ConfigMap, "a", namespace, preconditions=right) is None


async def test_owners_and_what_they_own(store: KubernetesStore, namespace: str) -> None:
    owner = await store.create(config_map(namespace, "owner"))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid}
    owned = codec.to_dict(config_map(namespace, "orphaned"))
    owned["metadata"]["ownerReferences"] = [reference]
    await store.create(codec.from_dict(ConfigMap, owned))
    leaving = await store.delete(ConfigMap, "owner", namespace, propagation="Orphan")
    assert leaving is not None
    assert leaving.metadata.finalizers == ["orphan"]
    async with asyncio.timeout(30):
        async for event in store.watch(
            ConfigMap, namespace, field_selector="metadata.name=orphaned", initial_events=True
        ):
            if event.type != "BOOKMARK" and not event.object.metadata.owner_references:
                break


# --- actions ------------------------------------------------------------------------------------


async def test_a_pod_is_bound_with_annotations(store: KubernetesStore, namespace: str) -> None:
    made = await store.create(codec.from_dict(Pod, pod(namespace, "p")))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "uid": made.uid, "annotations": {"windlass.dev/devices": "0,1"}},
        "target": {"kind": "Node", "name": "n1"},
    }
    answer = await store.create_subresource(Pod, "p", namespace, "binding", binding)
    assert answer["status"] == "Success"
    bound = await store.get(Pod, "p", namespace)
    assert bound.spec.node_name == "n1"
    assert bound.metadata.annotations == {"windlass.dev/devices": "0,1"}
    with pytest.raises(errors.Conflict):
        await store.create_subresource(Pod, "p", namespace, "binding", binding)


async def test_an_eviction_that_a_budget_forbids_is_answered_at_once(
    store: KubernetesStore, namespace: str
) -> None:
    await store.create(codec.from_dict(Pod, pod(namespace, "p", node="n1")))
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await store.patch(Pod, "p", namespace, patch={"status": running}, subresource="status")
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "p"}}},
    }
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    status, _, _ = await store.raw("POST", path, body=json.dumps(budget).encode())
    assert status == 201
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    with pytest.raises(errors.TooManyRequests) as refused:
        await store.create_subresource(Pod, "p", namespace, "eviction", eviction)
    assert [cause.reason for cause in refused.value.causes] == ["DisruptionBudget"]


async def test_logs_of_a_pod_that_is_on_no_node_are_refused(
    store: KubernetesStore, namespace: str
) -> None:
    await store.create(codec.from_dict(Pod, pod(namespace, "p")))
    with pytest.raises(errors.NotFound):
        await anext(store.logs("missing", namespace))
    with pytest.raises(errors.BadRequest, match="container x is not valid"):
        await anext(store.logs("p", namespace, container="x", tail_lines=5, follow=True))


# --- watching -----------------------------------------------------------------------------------


async def test_a_watch_begins_with_what_is_there_and_says_where_that_ends(
    store: KubernetesStore, namespace: str
) -> None:
    await store.create(codec.from_dict(Pod, pod(namespace, "p")))
    seen = []
    async with asyncio.timeout(30):
        async for event in store.watch(Pod, namespace, initial_events=True):
            seen.append((event.type, event.object.name, event.initial_end))
            if event.initial_end:
                assert int(event.object.metadata.resource_version) > 0
                break
    assert seen == [("ADDED", "p", False), ("BOOKMARK", "", True)]


async def test_a_bookmark_of_a_kind_with_required_fields(store: KubernetesStore) -> None:
    async with asyncio.timeout(30):
        async for event in store.watch(core.ClusterRoleBinding, initial_events=True):
            if event.initial_end:
                break


async def test_a_watch_resumes_after_any_version_it_has_seen(
    store: KubernetesStore, namespace: str
) -> None:
    start = (await store.list(ConfigMap, namespace)).resource_version
    await store.create(config_map(namespace, "a"))
    await store.patch(ConfigMap, "a", namespace, patch={"data": {"value": "2"}})
    await store.delete(ConfigMap, "a", namespace)

    async def changes(after: str, count: int) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        selector = "metadata.name=a"
        async for event in store.watch(
            ConfigMap, namespace, resource_version=after, field_selector=selector
        ):
            if event.type != "BOOKMARK":
                found.append((event.type, event.object.metadata.resource_version))
            if len(found) == count:
                break
        return found

    async with asyncio.timeout(30):
        everything = await changes(start, 3)
        assert [change for change, _ in everything] == ["ADDED", "MODIFIED", "DELETED"]
        assert await changes(everything[0][1], 2) == everything[1:]
        assert await changes(everything[1][1], 1) == everything[2:]


async def test_a_watch_that_the_server_ends_just_ends(
    store: KubernetesStore, namespace: str
) -> None:
    events = [event async for event in store.watch(Pod, namespace, timeout_seconds=1)]
    assert all(event.type == "BOOKMARK" for event in events)


async def test_a_watch_of_a_kind_we_may_not_see_is_forbidden(
    control_plane: ControlPlane,
) -> None:
    stranger = connect.open_store(str(control_plane.token_kubeconfig("alice")))
    with pytest.raises(errors.Forbidden, match="alice"):
        async for _ in stranger.watch(Pod):
            pass
    await stranger.close()


async def test_events_may_be_as_large_as_objects(store: KubernetesStore, namespace: str) -> None:
    """A line of the stream is far longer than any read buffer's default limit."""
    start = (await store.list(ConfigMap, namespace)).resource_version
    for i in range(6):
        await store.create(config_map(namespace, f"big{i}", "x" * 1_000_000))
    sizes = []
    async with asyncio.timeout(60):
        async for event in store.watch(ConfigMap, namespace, resource_version=start):
            if event.object.name.startswith("big"):
                sizes.append(len((event.object.data or {})["value"]))
            if len(sizes) == 6:
                break
    assert sizes == [1_000_000] * 6


async def test_watches_leave_connections_for_requests(
    store: KubernetesStore, namespace: str
) -> None:
    streams = [aiter(store.watch(ConfigMap, namespace, initial_events=True)) for _ in range(80)]
    async with asyncio.timeout(60):
        await asyncio.gather(*(anext(stream) for stream in streams))
        assert (await store.create(config_map(namespace, "a"))).uid
    for stream in streams:
        await stream.aclose()  # type: ignore[attr-defined]
