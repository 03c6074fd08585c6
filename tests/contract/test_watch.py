"""Watching: nothing lost, nothing twice, in order; selectors, bookmarks, clean ends."""

from __future__ import annotations

from typing import Any

from tests.contract.objects import (
    Json,
    binding,
    core,
    create_secrets,
    ok,
    own,
    pod,
    refused,
    run,
    secret,
    version_of,
)
from tests.harness.rest import Rest, Watch

_INITIAL_END = "k8s.io/initial-events-end"


def told(events: list[Json]) -> list[tuple[str, str]]:
    return [(event["type"], event["object"]["metadata"]["name"]) for event in events]


def now(api: Rest, path: str) -> str:
    return version_of(ok(api.get(path)))


def relabel(api: Rest, ns: str, name: str, **labels: str | None) -> Json:
    patched: Json = ok(api.merge(core(ns, "secrets", name), {"metadata": {"labels": labels}}))
    return patched


def test_watch_tells_added_modified_deleted_in_order(api: Rest, ns: str) -> None:
    path = core(ns, "secrets")
    with api.watch(path, resourceVersion=now(api, path)) as watch:
        create_secrets(api, ns, "a")
        relabel(api, ns, "a", x="1")
        ok(api.delete(core(ns, "secrets", "a")))
        create_secrets(api, ns, "b")
        assert told(watch.take(4)) == [
            ("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b"),
        ]  # fmt: skip


def test_watch_events_carry_the_object_as_it_was_then(api: Rest, ns: str) -> None:
    path = core(ns, "secrets")
    with api.watch(path, resourceVersion=now(api, path)) as watch:
        created = create_secrets(api, ns, "a")[0]
        changed = relabel(api, ns, "a", x="1")
        events = watch.take(2)
    assert [version_of(event["object"]) for event in events] == [
        version_of(created),
        version_of(changed),
    ]
    assert events[1]["object"]["metadata"]["labels"] == {"x": "1"}
    assert events[1]["object"]["kind"] == "Secret"


def test_watch_versions_only_grow(api: Rest, ns: str) -> None:
    path = core(ns, "secrets")
    with api.watch(path, resourceVersion=now(api, path)) as watch:
        create_secrets(api, ns, *(f"s{number}" for number in range(10)))
        versions = [int(version_of(event["object"])) for event in watch.take(10)]
    assert versions == sorted(set(versions))


def test_deleted_event_has_the_version_of_the_deletion(api: Rest, ns: str) -> None:
    created = create_secrets(api, ns, "a")[0]
    with api.watch(core(ns, "secrets"), resourceVersion=version_of(created)) as watch:
        ok(api.delete(core(ns, "secrets", "a")))
        (event,) = watch.take(1)
    assert event["type"] == "DELETED"
    assert int(version_of(event["object"])) > int(version_of(created))


def test_watch_from_a_past_version_replays_what_happened_since(api: Rest, ns: str) -> None:
    path = core(ns, "secrets")
    begin = now(api, path)
    create_secrets(api, ns, "a", "b")
    ok(api.delete(core(ns, "secrets", "a")))
    with api.watch(path, resourceVersion=begin) as watch:
        assert told(watch.take(3)) == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a")]


def test_watch_resumes_without_loss_or_repeats(api: Rest, ns: str) -> None:
    path = core(ns, "secrets")
    expected = [f"s{number:02}" for number in range(12)]
    version, seen = now(api, path), []
    for start in range(0, 12, 4):
        with api.watch(path, resourceVersion=version) as watch:
            create_secrets(api, ns, *expected[start : start + 4])
            events = watch.take(3)  # cut with one event unread
        seen += [event["object"]["metadata"]["name"] for event in events]
        version = version_of(events[-1]["object"])
    with api.watch(path, resourceVersion=version) as watch:
        seen += [event["object"]["metadata"]["name"] for event in watch.take(12 - len(seen))]
    assert seen == expected


def test_watch_without_a_version_begins_with_what_is_there(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a", "b")
    with api.watch(core(ns, "secrets")) as watch:
        assert sorted(told(watch.take(2))) == [("ADDED", "a"), ("ADDED", "b")]
        create_secrets(api, ns, "c")
        assert told(watch.take(1)) == [("ADDED", "c")]


def test_watch_from_version_zero_begins_with_what_is_there(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a", "b")
    with api.watch(core(ns, "secrets"), resourceVersion="0") as watch:
        assert sorted(told(watch.take(2))) == [("ADDED", "a"), ("ADDED", "b")]


def test_watch_of_one_namespace_does_not_tell_of_others(api: Rest, ns: str) -> None:
    path = core(ns, "secrets")
    with api.watch(path, resourceVersion=now(api, path)) as watch:
        create_secrets(api, "default", f"elsewhere-{ns}")
        create_secrets(api, ns, "here")
        assert told(watch.take(1)) == [("ADDED", "here")]


def test_watch_across_namespaces_tells_of_all(api: Rest, ns: str) -> None:
    version = now(api, "/api/v1/secrets")
    with api.watch("/api/v1/secrets", resourceVersion=version) as watch:
        create_secrets(api, "default", f"elsewhere-{ns}")
        create_secrets(api, ns, "here")
        assert told(watch.take(2)) == [("ADDED", f"elsewhere-{ns}"), ("ADDED", "here")]


def test_watch_of_an_own_kind(api: Rest, ns: str) -> None:
    path = own(ns, "runs")
    with api.watch(path, resourceVersion=now(api, path)) as watch:
        ok(api.post(path, run("a")), 201)
        ok(api.merge(own(ns, "runs", "a", "status"), {"status": {"phase": "Starting"}}))
        events = watch.take(2)
    assert told(events) == [("ADDED", "a"), ("MODIFIED", "a")]
    assert events[1]["object"]["status"]["phase"] == "Starting"


def test_watch_ignores_a_write_that_changed_nothing(api: Rest, ns: str) -> None:
    created = create_secrets(api, ns, "a")[0]
    with api.watch(core(ns, "secrets"), resourceVersion=version_of(created)) as watch:
        ok(api.put(core(ns, "secrets", "a"), created))
        create_secrets(api, ns, "b")
        assert told(watch.take(1)) == [("ADDED", "b")]


# --- selectors ----------------------------------------------------------------------------------


def test_object_that_enters_the_label_selector_is_added(api: Rest, ns: str) -> None:
    created = create_secrets(api, ns, "a")[0]
    with _labelled(api, ns, version_of(created)) as watch:
        relabel(api, ns, "a", app="web")
        assert told(watch.take(1)) == [("ADDED", "a")]


def test_object_that_leaves_the_label_selector_is_deleted(api: Rest, ns: str) -> None:
    created = create_secrets(api, ns, "a", labels={"app": "web"})[0]
    with _labelled(api, ns, version_of(created)) as watch:
        changed = relabel(api, ns, "a", app="db")
        (event,) = watch.take(1)
    assert told([event]) == [("DELETED", "a")]
    assert version_of(event["object"]) == version_of(changed)
    assert event["object"]["metadata"]["labels"] == {"app": "web"}


def test_object_that_stays_in_the_label_selector_is_modified(api: Rest, ns: str) -> None:
    created = create_secrets(api, ns, "a", labels={"app": "web"})[0]
    with _labelled(api, ns, version_of(created)) as watch:
        relabel(api, ns, "a", other="x")
        assert told(watch.take(1)) == [("MODIFIED", "a")]


def test_object_outside_the_label_selector_is_not_sent(api: Rest, ns: str) -> None:
    created = create_secrets(api, ns, "a")[0]
    with _labelled(api, ns, version_of(created)) as watch:
        relabel(api, ns, "a", other="x")
        ok(api.delete(core(ns, "secrets", "a")))
        create_secrets(api, ns, "b", labels={"app": "web"})
        assert told(watch.take(1)) == [("ADDED", "b")]


def _labelled(api: Rest, ns: str, version: str) -> Watch:
    return api.watch(core(ns, "secrets"), resourceVersion=version, labelSelector="app=web")


def test_watch_of_one_name(api: Rest, ns: str) -> None:
    path = core(ns, "secrets")
    version = now(api, path)
    with api.watch(path, resourceVersion=version, fieldSelector="metadata.name=b") as watch:
        create_secrets(api, ns, "a", "b", "c")
        relabel(api, ns, "a", x="1")
        relabel(api, ns, "b", x="1")
        assert told(watch.take(2)) == [("ADDED", "b"), ("MODIFIED", "b")]


def test_watch_by_node_sees_a_pod_when_it_is_bound(api: Rest, ns: str) -> None:
    created = ok(api.post(core(ns, "pods"), pod("a")), 201)
    with api.watch(
        core(ns, "pods"), resourceVersion=version_of(created), fieldSelector="spec.nodeName=n1"
    ) as watch:
        ok(api.post(core(ns, "pods", "a", "binding"), binding("a", "n1")), 201)
        assert told(watch.take(1)) == [("ADDED", "a")]


def test_watch_with_a_bad_selector_is_refused(api: Rest, ns: str) -> None:
    with api.watch(core(ns, "secrets"), labelSelector="a in b") as watch:
        assert watch.status == 400


# --- initial events and bookmarks ---------------------------------------------------------------


def test_initial_events_end_with_a_marked_bookmark(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a", "b")
    with _initial(api, ns) as watch:
        events = _until_initial_end(watch)
        assert sorted(told(events[:-1])) == [("ADDED", "a"), ("ADDED", "b")]
        bookmark = events[-1]["object"]
        assert bookmark["kind"] == "Secret"
        create_secrets(api, ns, "c")
        (after,) = watch.take(1)
    assert told([after]) == [("ADDED", "c")]
    assert int(version_of(bookmark)) < int(version_of(after["object"]))


def test_initial_events_of_nothing_still_end_with_a_bookmark(api: Rest, ns: str) -> None:
    with _initial(api, ns) as watch:
        assert [event["type"] for event in _until_initial_end(watch)] == ["BOOKMARK"]


def test_bookmark_of_initial_events_can_be_resumed_from(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a")
    with _initial(api, ns) as watch:
        version = version_of(_until_initial_end(watch)[-1]["object"])
    create_secrets(api, ns, "b")
    with api.watch(core(ns, "secrets"), resourceVersion=version) as watch:
        assert told(watch.take(1)) == [("ADDED", "b")]


def test_initial_events_need_a_version_match(api: Rest, ns: str) -> None:
    with api.watch(core(ns, "secrets"), sendInitialEvents=True, allowWatchBookmarks=True) as watch:
        assert watch.status == 422


def test_version_match_without_initial_events_is_refused(api: Rest, ns: str) -> None:
    with api.watch(core(ns, "secrets"), resourceVersionMatch="NotOlderThan") as watch:
        assert watch.status == 422


def test_initial_events_respect_selectors(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a", labels={"app": "web"})
    create_secrets(api, ns, "b")
    with _initial(api, ns, labelSelector="app=web") as watch:
        assert told(_until_initial_end(watch)[:-1]) == [("ADDED", "a")]


def _initial(api: Rest, ns: str, **more: Any) -> Watch:
    return api.watch(
        core(ns, "secrets"),
        sendInitialEvents=True,
        allowWatchBookmarks=True,
        resourceVersionMatch="NotOlderThan",
        **more,
    )


def _until_initial_end(watch: Watch) -> list[Json]:
    events: list[Json] = []
    for event in watch:
        events.append(event)
        if event["object"]["metadata"].get("annotations", {}).get(_INITIAL_END) == "true":
            return events
    raise AssertionError(f"the watch ended without a marked bookmark: {events}")


# --- ends ---------------------------------------------------------------------------------------


def test_watch_ends_cleanly_after_its_timeout(api: Rest, ns: str) -> None:
    created = create_secrets(api, ns, "a")[0]
    with api.watch(
        core(ns, "secrets"), resourceVersion=version_of(created), timeoutSeconds=1
    ) as watch:
        assert [event for event in watch if event["type"] != "BOOKMARK"] == []


def test_watch_of_an_unknown_namespace_is_an_empty_stream(api: Rest) -> None:
    with api.watch(core("nowhere", "secrets"), timeoutSeconds=1) as watch:
        assert watch.status == 200
        assert [event for event in watch if event["type"] != "BOOKMARK"] == []


def test_watch_with_a_bad_version_is_refused(api: Rest, ns: str) -> None:
    with api.watch(core(ns, "secrets"), resourceVersion="yesterday") as watch:
        assert watch.status >= 400


def test_watch_of_something_that_cannot_be_selected_is_refused(api: Rest, ns: str) -> None:
    answer = api.get(core(ns, "secrets"), watch=1, fieldSelector="spec.color=red")
    refused(answer, 400, "BadRequest")


def test_many_events_in_one_burst_all_arrive(api: Rest, ns: str) -> None:
    path = core(ns, "secrets")
    with api.watch(path, resourceVersion=now(api, path)) as watch:
        for number in range(100):
            ok(api.post(path, secret(f"s{number:03}")), 201)
        assert told(watch.take(100)) == [("ADDED", f"s{number:03}") for number in range(100)]


# --- bookmarks and versions that are not yet ----------------------------------------------------


def test_no_bookmarks_for_clients_that_did_not_ask(api: Rest, ns: str) -> None:
    begin = now(api, core(ns, "secrets"))
    with api.watch(core(ns, "secrets"), resourceVersion=begin, timeoutSeconds=2) as watch:
        assert list(watch) == []


def test_list_not_older_than_a_future_version_times_out(api: Rest, ns: str) -> None:
    future = str(int(now(api, core(ns, "secrets"))) + 1_000_000)
    answer = api.get(core(ns, "secrets"), resourceVersion=future)
    refused(answer, 504, "Timeout")
