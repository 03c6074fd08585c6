"""The Store protocol: the one that controllers, scheduler, SDK and CLI speak.

Three engines: in the server's own process, over HTTP to the embedded server, over HTTP to a real
kube-apiserver. Same code, same objects, same errors.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import pytest

from windlass.kinds import codec
from windlass.kinds.types import core, queue, run
from windlass.kinds.types.meta import Object, ObjectMeta, OwnerReference
from windlass.store import connect, errors
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore
from windlass.store.interface import Preconditions, Store, WatchEvent

T = TypeVar("T", bound=Object)
_numbers = itertools.count(1)


@pytest.fixture(
    params=["in-process", "embedded", pytest.param("kubernetes", marks=pytest.mark.kubernetes)]
)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "in-process":
        api = await Api.open(tmp_path / "store.db")
        yield EmbeddedStore(api)
        await api.close()
        return
    fixture = "control_plane" if request.param == "kubernetes" else "embedded_server"
    opened = connect.open_store(str(request.getfixturevalue(fixture).kubeconfig))
    yield opened
    await opened.close()


@pytest.fixture
async def ns(store: Store) -> str:
    name = f"store-{next(_numbers)}"
    await store.create(core.Namespace(metadata=ObjectMeta(name=name)))
    return name


def secret(ns: str, name: str, **labels: str) -> core.Secret:
    return core.Secret(metadata=ObjectMeta(name=name, namespace=ns, labels=labels or None))


def a_run(ns: str, name: str = "a") -> run.Run:
    roles = [run.Role(command=["true"])]
    return run.Run(metadata=ObjectMeta(name=name, namespace=ns), spec=run.RunSpec(roles=roles))


async def take(events: AsyncIterator[WatchEvent[T]], count: int) -> list[tuple[str, str]]:
    """Type and name of the next changes, bookmarks left out."""
    taken: list[tuple[str, str]] = []
    async with asyncio.timeout(20):
        while len(taken) < count:
            event = await anext(events)
            if event.type != "BOOKMARK":
                taken.append((event.type, event.object.name))
    return taken


async def test_create_and_get(store: Store, ns: str) -> None:
    created = await store.create(a_run(ns))
    assert created.uid
    assert created.metadata.generation == 1
    found = await store.get(run.Run, "a", ns)
    assert codec.to_dict(found) == codec.to_dict(created)


async def test_create_of_a_cluster_scoped_kind(store: Store, ns: str) -> None:
    await store.create(queue.Queue(metadata=ObjectMeta(name=ns)))
    assert (await store.get(queue.Queue, ns)).name == ns
    assert await store.delete(queue.Queue, ns) is None


async def test_create_with_a_generated_name(store: Store, ns: str) -> None:
    asked = core.Secret(metadata=ObjectMeta(generate_name="s-", namespace=ns))
    assert (await store.create(asked)).name.startswith("s-")


async def test_create_twice_raises_already_exists(store: Store, ns: str) -> None:
    await store.create(a_run(ns))
    with pytest.raises(errors.AlreadyExists) as raised:
        await store.create(a_run(ns))
    assert raised.value.details["name"] == "a"


async def test_dry_run_leaves_nothing(store: Store, ns: str) -> None:
    assert (await store.create(a_run(ns), dry_run=True)).name == "a"
    with pytest.raises(errors.NotFound):
        await store.get(run.Run, "a", ns)


async def test_get_of_nothing_raises_not_found(store: Store, ns: str) -> None:
    with pytest.raises(errors.NotFound, match=r'runs\.windlass\.dev "none" not found'):
        await store.get(run.Run, "none", ns)


async def test_invalid_object_raises_with_the_field(store: Store, ns: str) -> None:
    bad = a_run(ns)
    bad.spec.priority = 5000
    with pytest.raises(errors.Invalid) as raised:
        await store.create(bad)
    assert [cause.field for cause in raised.value.causes] == ["spec.priority"]


async def test_unknown_namespace_raises_not_found(store: Store) -> None:
    with pytest.raises(errors.NotFound):
        await store.create(a_run("nowhere"))


async def test_list_by_label_and_by_page(store: Store, ns: str) -> None:
    for number in range(5):
        await store.create(secret(ns, f"s{number}", app="web"))
    await store.create(secret(ns, "other"))
    first = await store.list(core.Secret, ns, label_selector="app=web", limit=3)
    assert [item.name for item in first.items] == ["s0", "s1", "s2"]
    await store.delete(core.Secret, "s4", ns)
    second = await store.list(
        core.Secret,
        ns,
        label_selector="app=web",
        limit=3,
        continue_token=first.continue_token,
    )
    assert [item.name for item in second.items] == ["s3", "s4"]
    assert second.continue_token == ""


async def test_list_by_field_across_namespaces(store: Store, ns: str) -> None:
    await store.create(secret(ns, f"only-{ns}"))
    found = await store.list(core.Secret, field_selector=f"metadata.name=only-{ns}")
    assert [(item.namespace, item.name) for item in found.items] == [(ns, f"only-{ns}")]


async def test_bad_selector_raises_bad_request(store: Store, ns: str) -> None:
    with pytest.raises(errors.BadRequest):
        await store.list(core.Secret, ns, label_selector="a in b")


async def test_replace_keeps_fields_that_structs_do_not_know(store: Store, ns: str) -> None:
    body = {
        "metadata": {"name": "a", "namespace": ns},
        "spec": {
            "ports": [{"port": 80}],
            "clusterIP": "None",
            "selector": {"run": "w"},
            "sessionAffinity": "ClientIP",
        },
    }
    await store.create(codec.from_dict(core.Service, body))
    service = await store.get(core.Service, "a", ns)
    service.spec.selector = {"run": "x"}
    replaced = codec.to_dict(await store.replace(service))
    assert replaced["spec"]["sessionAffinity"] == "ClientIP"
    assert replaced["spec"]["selector"] == {"run": "x"}


async def test_replace_of_an_object_out_of_a_list(store: Store, ns: str) -> None:
    await store.create(a_run(ns))
    (listed,) = (await store.list(run.Run, ns)).items
    listed.spec.priority = 60
    replaced = await store.replace(listed)
    assert (replaced.spec.priority, replaced.metadata.generation) == (60, 2)


async def test_replace_of_an_old_version_raises_conflict(store: Store, ns: str) -> None:
    old = await store.create(a_run(ns))
    await store.patch(run.Run, "a", ns, patch={"spec": {"priority": 60}})
    old.spec.priority = 70
    with pytest.raises(errors.Conflict):
        await store.replace(old)


async def test_only_one_of_many_writers_of_a_version_wins(store: Store, ns: str) -> None:
    created = await store.create(a_run(ns))
    version = created.metadata.resource_version

    async def write(number: int) -> bool:
        patch = {"metadata": {"resourceVersion": version}, "spec": {"priority": number}}
        try:
            await store.patch(run.Run, "a", ns, patch=patch)
        except errors.Conflict:
            return False
        return True

    assert sum(await asyncio.gather(*(write(number) for number in range(1, 11)))) == 1


async def test_status_is_written_apart(store: Store, ns: str) -> None:
    created = await store.create(a_run(ns))
    created.status.phase = "Queued"
    created.spec.priority = 60
    replaced = await store.replace(created, subresource="status")
    assert (replaced.status.phase, replaced.spec.priority) == ("Queued", 50)
    patched = await store.patch(
        run.Run, "a", ns, patch={"status": {"attempt": 1}}, subresource="status"
    )
    assert (patched.status.phase, patched.status.attempt) == ("Queued", 1)


async def test_json_patch_that_tests_in_vain_raises_invalid(store: Store, ns: str) -> None:
    await store.create(a_run(ns))
    operations = [{"op": "test", "path": "/metadata/name", "value": "b"}]
    with pytest.raises(errors.Invalid):
        await store.patch(run.Run, "a", ns, patch=operations)


async def test_delete_says_whether_something_holds_it(store: Store, ns: str) -> None:
    await store.create(a_run(ns, "free"))
    held = a_run(ns, "held")
    held.metadata.finalizers = ["example.com/hold"]
    await store.create(held)
    assert await store.delete(run.Run, "free", ns) is None
    left = await store.delete(run.Run, "held", ns)
    assert left is not None
    assert left.metadata.deletion_timestamp
    await store.patch(run.Run, "held", ns, patch={"metadata": {"finalizers": None}})
    with pytest.raises(errors.NotFound):
        await store.get(run.Run, "held", ns)


async def test_delete_with_another_uid_raises_conflict(store: Store, ns: str) -> None:
    created = await store.create(a_run(ns))
    with pytest.raises(errors.Conflict):
        await store.delete(run.Run, "a", ns, preconditions=Preconditions(uid="other"))
    assert (
        await store.delete(run.Run, "a", ns, preconditions=Preconditions(uid=created.uid)) is None
    )


async def test_dependents_go_after_their_owner(store: Store, ns: str) -> None:
    owner = await store.create(a_run(ns, "owner"))
    child = secret(ns, "child")
    child.metadata.owner_references = [
        OwnerReference(api_version="windlass.dev/v1alpha1", kind="Run", name="owner", uid=owner.uid)
    ]
    created = await store.create(child)
    events = store.watch(core.Secret, ns, resource_version=created.metadata.resource_version)
    await store.delete(run.Run, "owner", ns)
    assert await take(events, 1) == [("DELETED", "child")]


async def test_watch_tells_changes_in_order(store: Store, ns: str) -> None:
    begin = (await store.list(core.Secret, ns)).resource_version
    events = store.watch(core.Secret, ns, resource_version=begin)
    await store.create(secret(ns, "a"))
    await store.patch(core.Secret, "a", ns, patch={"metadata": {"labels": {"x": "1"}}})
    await store.delete(core.Secret, "a", ns)
    expected = [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert await take(events, 3) == expected


async def test_watch_with_initial_events_marks_their_end(store: Store, ns: str) -> None:
    await store.create(secret(ns, "a"))
    events = store.watch(core.Secret, ns, initial_events=True)
    seen: list[tuple[str, bool]] = []
    async with asyncio.timeout(20):
        async for event in events:
            seen.append((event.type, event.initial_end))
            if event.initial_end:
                assert event.object.metadata.resource_version
                break
    assert seen == [("ADDED", False), ("BOOKMARK", True)]


async def test_watch_ends_after_its_timeout(store: Store, ns: str) -> None:
    begin = (await store.list(core.Secret, ns)).resource_version
    events = store.watch(core.Secret, ns, resource_version=begin, timeout_seconds=1)
    async with asyncio.timeout(20):
        assert [event async for event in events if event.type != "BOOKMARK"] == []


async def test_watch_resumes_from_the_last_version_seen(store: Store, ns: str) -> None:
    first = await store.create(secret(ns, "a"))
    await store.create(secret(ns, "b"))
    await store.create(secret(ns, "c"))
    events = store.watch(core.Secret, ns, resource_version=first.metadata.resource_version)
    assert await take(events, 2) == [("ADDED", "b"), ("ADDED", "c")]


async def test_pod_with_grace_is_returned_while_it_ends(store: Store, ns: str) -> None:
    await store.create(core.ServiceAccount(metadata=ObjectMeta(name="worker", namespace=ns)))
    container = core.Container(name="main", image="example/image:1")
    spec = core.PodSpec(containers=[container], node_name="n1", service_account_name="worker")
    await store.create(core.Pod(metadata=ObjectMeta(name="a", namespace=ns), spec=spec))
    left = await store.delete(core.Pod, "a", ns, grace_seconds=9)
    assert left is not None
    assert left.metadata.deletion_grace_period_seconds == 9
    await store.delete(core.Pod, "a", ns, grace_seconds=0)
    with pytest.raises(errors.NotFound):
        await store.get(core.Pod, "a", ns)
