"""Reading one and many: selectors, pages that are exact, what a list says about itself."""

from __future__ import annotations

import pytest

from tests.contract.objects import (
    Json,
    config_map,
    core,
    create_secrets,
    names,
    ok,
    own,
    pod,
    refused,
    run,
    secret,
    version_of,
)
from tests.harness.rest import Rest


def test_get_answers_what_was_created(api: Rest, ns: str) -> None:
    created = ok(api.post(core(ns, "configmaps"), config_map("a", {"x": "y"})), 201)
    assert ok(api.get(core(ns, "configmaps", "a"))) == created


def test_get_of_nothing_is_not_found(api: Rest, ns: str) -> None:
    status = refused(api.get(core(ns, "configmaps", "none")), 404, "NotFound")
    assert status["message"] == 'configmaps "none" not found'
    assert status["details"] == {"name": "none", "kind": "configmaps"}


def test_get_of_an_own_kind_that_is_missing_names_its_group(api: Rest, ns: str) -> None:
    status = refused(api.get(own(ns, "runs", "none")), 404, "NotFound")
    assert status["message"] == 'runs.windlass.dev "none" not found'
    assert status["details"] == {"name": "none", "group": "windlass.dev", "kind": "runs"}


def test_get_in_another_namespace_is_not_found(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "configmaps"), config_map("here")), 201)
    refused(api.get(core("default", "configmaps", "here")), 404, "NotFound")


def test_list_has_kind_version_and_the_objects_by_name(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "c", "a", "b")
    listing = ok(api.get(core(ns, "secrets")))
    assert (listing["apiVersion"], listing["kind"]) == ("v1", "SecretList")
    assert names(listing) == ["a", "b", "c"]
    assert listing["metadata"]["resourceVersion"].isdigit()


def test_list_of_an_own_kind_repeats_kind_and_version_in_items(api: Rest, ns: str) -> None:
    ok(api.post(own(ns, "runs"), run("a")), 201)
    listing = ok(api.get(own(ns, "runs")))
    assert (listing["apiVersion"], listing["kind"]) == ("windlass.dev/v1alpha1", "RunList")
    assert [item["kind"] for item in listing["items"]] == ["Run"]


def test_list_version_is_not_older_than_its_objects(api: Rest, ns: str) -> None:
    created = create_secrets(api, ns, "a")[0]
    listing = ok(api.get(core(ns, "secrets")))
    assert int(listing["metadata"]["resourceVersion"]) >= int(version_of(created))


def test_list_of_an_empty_or_unknown_namespace_is_empty(api: Rest, ns: str) -> None:
    assert ok(api.get(core(ns, "secrets")))["items"] == []
    assert ok(api.get(core("nowhere", "secrets")))["items"] == []


def test_list_across_namespaces_finds_all(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a", labels={"across": ns})
    create_secrets(api, "default", f"b-{ns}", labels={"across": ns})
    listing = ok(api.get("/api/v1/secrets", labelSelector=f"across={ns}"))
    found = {(item["metadata"]["namespace"], item["metadata"]["name"]) for item in listing["items"]}
    assert found == {(ns, "a"), ("default", f"b-{ns}")}


# --- label selectors ----------------------------------------------------------------------------

_LABELS: dict[str, dict[str, str]] = {
    "plain": {},
    "web-prod": {"app": "web", "tier": "prod"},
    "web-test": {"app": "web", "tier": "test"},
    "db-prod": {"app": "db", "tier": "prod", "windlass.dev/run": "x"},
    "empty-tier": {"app": "db", "tier": ""},
}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("app=web", ["web-prod", "web-test"]),
        ("app==web", ["web-prod", "web-test"]),
        ("app!=web", ["db-prod", "empty-tier", "plain"]),
        ("app=web,tier=prod", ["web-prod"]),
        ("app in (web, db)", ["db-prod", "empty-tier", "web-prod", "web-test"]),
        ("tier in (test)", ["web-test"]),
        ("tier notin (prod, test)", ["empty-tier", "plain"]),
        ("tier", ["db-prod", "empty-tier", "web-prod", "web-test"]),
        ("!tier", ["plain"]),
        ("tier=", ["empty-tier"]),
        ("windlass.dev/run=x", ["db-prod"]),
        ("app,tier!=prod,!windlass.dev/run", ["empty-tier", "web-test"]),
        ("app=none", []),
        ("", ["db-prod", "empty-tier", "plain", "web-prod", "web-test"]),
    ],
)
def test_label_selector(api: Rest, ns: str, selector: str, expected: list[str]) -> None:
    for name, labels in _LABELS.items():
        ok(api.post(core(ns, "secrets"), secret(name, labels=labels)), 201)
    assert names(ok(api.get(core(ns, "secrets"), labelSelector=selector))) == expected


@pytest.mark.parametrize(
    "selector",
    [
        "app=web=x",
        "app in web",
        "app in (web",
        "=web",
        "app=bad value",
        "bad key",
        "app,,tier",
        "!",
    ],
)
def test_bad_label_selector_is_refused(api: Rest, ns: str, selector: str) -> None:
    refused(api.get(core(ns, "secrets"), labelSelector=selector), 400, "BadRequest")


# --- field selectors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("metadata.name=free", ["free"]),
        ("metadata.name!=free", ["bound", "done"]),
        ("spec.nodeName=node-1", ["bound", "done"]),
        ("spec.nodeName=", ["free"]),
        ("spec.nodeName!=", ["bound", "done"]),
        ("status.phase=Pending", ["bound", "free"]),
        ("status.phase=Succeeded", ["done"]),
        ("spec.nodeName=node-1,status.phase!=Succeeded", ["bound"]),
    ],
)
def test_field_selector_of_pods(api: Rest, ns: str, selector: str, expected: list[str]) -> None:
    ok(api.post(core(ns, "pods"), pod("free")), 201)
    ok(api.post(core(ns, "pods"), pod("bound", node="node-1")), 201)
    ok(api.post(core(ns, "pods"), pod("done", node="node-1")), 201)
    ok(api.merge(core(ns, "pods", "done", "status"), {"status": {"phase": "Succeeded"}}))
    assert names(ok(api.get(core(ns, "pods"), fieldSelector=selector))) == expected


def test_field_selector_by_namespace(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a", labels={"by": ns})
    create_secrets(api, "default", f"b-{ns}", labels={"by": ns})
    listing = ok(
        api.get(
            "/api/v1/secrets", fieldSelector=f"metadata.namespace={ns}", labelSelector=f"by={ns}"
        )
    )
    assert names(listing) == ["a"]


def test_field_selector_by_name_on_an_own_kind(api: Rest, ns: str) -> None:
    for name in ("a", "b"):
        ok(api.post(own(ns, "runs"), run(name)), 201)
    assert names(ok(api.get(own(ns, "runs"), fieldSelector="metadata.name=b"))) == ["b"]


def test_field_selector_by_type_of_secret(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "opaque")
    ok(api.post(core(ns, "secrets"), secret("special") | {"type": "windlass.dev/token"}), 201)
    listing = ok(api.get(core(ns, "secrets"), fieldSelector="type=windlass.dev/token"))
    assert names(listing) == ["special"]


def test_field_selector_of_events(api: Rest, ns: str) -> None:
    for name, involved in (("e1", "a"), ("e2", "b")):
        ok(api.post(core(ns, "events"), _event(name, ns, involved)), 201)
    selector = f"involvedObject.name=b,involvedObject.kind=Pod,involvedObject.namespace={ns}"
    assert names(ok(api.get(core(ns, "events"), fieldSelector=selector))) == ["e2"]
    selector = "involvedObject.uid=uid-of-a,reason=Started,type=Normal"
    assert names(ok(api.get(core(ns, "events"), fieldSelector=selector))) == ["e1"]


def _event(name: str, namespace: str, involved: str) -> Json:
    reference = {
        "kind": "Pod",
        "namespace": namespace,
        "name": involved,
        "uid": f"uid-of-{involved}",
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name},
        "involvedObject": reference,
        "reason": "Started",
        "type": "Normal",
        "message": "it started",
    }


@pytest.mark.parametrize("selector", ["spec.color=red", "metadata.labels=x", "name=a"])
def test_field_that_cannot_be_selected_is_refused(api: Rest, ns: str, selector: str) -> None:
    refused(api.get(core(ns, "configmaps"), fieldSelector=selector), 400, "BadRequest")


def test_field_that_an_own_kind_cannot_select_is_refused(api: Rest, ns: str) -> None:
    refused(api.get(own(ns, "runs"), fieldSelector="spec.framework=torch"), 400, "BadRequest")


def test_field_selector_without_operator_is_refused(api: Rest, ns: str) -> None:
    refused(api.get(core(ns, "secrets"), fieldSelector="metadata.name"), 400, "BadRequest")


# --- pages --------------------------------------------------------------------------------------


def test_pages_together_are_the_whole_list(api: Rest, ns: str) -> None:
    expected = [f"s{number:02}" for number in range(10)]
    create_secrets(api, ns, *expected)
    found, token, sizes = [], "", []
    while True:
        page = ok(api.get(core(ns, "secrets"), limit=4, **({"continue": token} if token else {})))
        found += names(page)
        sizes.append(len(page["items"]))
        token = page["metadata"].get("continue", "")
        if not token:
            break
    assert found == expected
    assert sizes == [4, 4, 2]


def test_page_says_how_many_remain(api: Rest, ns: str) -> None:
    create_secrets(api, ns, *(f"s{number}" for number in range(5)))
    page = ok(api.get(core(ns, "secrets"), limit=2))
    assert page["metadata"]["remainingItemCount"] == 3


def test_page_with_a_selector_does_not_say_how_many_remain(api: Rest, ns: str) -> None:
    create_secrets(api, ns, *(f"s{number}" for number in range(5)), labels={"a": "b"})
    page = ok(api.get(core(ns, "secrets"), limit=2, labelSelector="a=b"))
    assert page["metadata"]["continue"]
    assert "remainingItemCount" not in page["metadata"]


def test_limit_equal_to_the_count_needs_no_second_page(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a", "b")
    assert "continue" not in ok(api.get(core(ns, "secrets"), limit=2))["metadata"]


def test_next_page_is_of_the_same_moment_as_the_first(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a", "b", "c", "d")
    first = ok(api.get(core(ns, "secrets"), limit=2))
    ok(api.delete(core(ns, "secrets", "c")))
    ok(api.merge(core(ns, "secrets", "d"), {"metadata": {"labels": {"later": "yes"}}}))
    create_secrets(api, ns, "cc", "e")
    second = ok(
        api.get(core(ns, "secrets"), limit=10, **{"continue": first["metadata"]["continue"]})
    )
    assert names(second) == ["c", "d"]
    assert "labels" not in second["items"][1]["metadata"]
    assert version_of(second) == version_of(first)


def test_pages_with_a_selector_skip_what_does_not_match(api: Rest, ns: str) -> None:
    for number in range(9):
        labels = {"odd": "yes"} if number % 2 else {}
        ok(api.post(core(ns, "secrets"), secret(f"s{number}", labels=labels)), 201)
    first = ok(api.get(core(ns, "secrets"), limit=3, labelSelector="odd=yes"))
    second = ok(
        api.get(
            core(ns, "secrets"),
            limit=3,
            labelSelector="odd=yes",
            **{"continue": first["metadata"]["continue"]},
        )
    )
    assert names(first) + names(second) == ["s1", "s3", "s5", "s7"]


@pytest.mark.parametrize("token", ["nonsense", "bm9uc2Vuc2U", "e30"])
def test_bad_continue_token_is_refused(api: Rest, ns: str, token: str) -> None:
    refused(api.get(core(ns, "secrets"), limit=1, **{"continue": token}), 400, "BadRequest")


def test_continue_with_a_resource_version_is_refused(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a", "b")
    token = ok(api.get(core(ns, "secrets"), limit=1))["metadata"]["continue"]
    answer = api.get(core(ns, "secrets"), limit=1, resourceVersion="5", **{"continue": token})
    refused(answer, 400, "BadRequest")


# --- versions -----------------------------------------------------------------------------------


def test_list_from_any_version_has_what_is_there(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a")
    version = version_of(ok(api.get(core(ns, "secrets"))))
    assert names(ok(api.get(core(ns, "secrets"), resourceVersion="0"))) == ["a"]
    assert names(ok(api.get(core(ns, "secrets"), resourceVersion=version))) == ["a"]


def test_list_at_an_exact_version_is_of_that_moment(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a")
    version = version_of(ok(api.get(core(ns, "secrets"))))
    create_secrets(api, ns, "b")
    listing = ok(
        api.get(core(ns, "secrets"), resourceVersion=version, resourceVersionMatch="Exact")
    )
    assert names(listing) == ["a"]


def test_bad_resource_version_is_refused(api: Rest, ns: str) -> None:
    answer = api.get(core(ns, "secrets"), resourceVersion="yesterday")
    assert answer.status in (400, 422), answer.summary


def test_unknown_resource_is_not_found(api: Rest, ns: str) -> None:
    assert api.get(core(ns, "unicorns")).status == 404
    assert api.get("/apis/example.com/v1/unicorns").status == 404
