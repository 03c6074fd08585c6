"""HTTP itself: authentication, which methods, bodies that are none, what is too large."""

from __future__ import annotations

import pytest

from tests.contract.objects import config_map, core, ok, own, refused
from tests.harness.rest import Rest


def test_without_a_token_no_user_is_authenticated(api: Rest, ns: str) -> None:
    refused(api.as_token("").get(core(ns, "configmaps")), 401, "Unauthorized")


def test_unknown_token_is_unauthorized(api: Rest, ns: str) -> None:
    refused(api.as_token("no-such-token").get(core(ns, "configmaps")), 401, "Unauthorized")


def test_unknown_token_cannot_write(api: Rest, ns: str) -> None:
    answer = api.as_token("no-such-token").post(core(ns, "configmaps"), config_map("a"))
    refused(answer, 401, "Unauthorized")
    assert api.get(core(ns, "configmaps", "a")).status == 404


def test_whoami(api: Rest) -> None:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    review = ok(api.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", body), 201)
    assert review["kind"] == "SelfSubjectReview"
    assert review["status"]["userInfo"]["username"]
    assert "system:authenticated" in review["status"]["userInfo"]["groups"]


def test_may_i(api: Rest, ns: str) -> None:
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"namespace": ns, "verb": "create", "resource": "pods"}},
    }
    review = ok(api.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body), 201)
    assert review["status"]["allowed"] is True


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_method_that_a_collection_does_not_have(api: Rest, ns: str, method: str) -> None:
    answer = api.request(
        method, core(ns, "configmaps"), {}, content_type="application/merge-patch+json"
    )
    refused(answer, 405, "MethodNotAllowed")


def test_binding_can_only_be_posted(api: Rest, ns: str) -> None:
    refused(api.get(core(ns, "pods", "a", "binding")), 405, "MethodNotAllowed")


@pytest.mark.parametrize("body", [b"", b"{bad", b"[]", b'"text"', b"\xff\xfe"])
def test_body_that_is_no_object_is_refused(api: Rest, ns: str, body: bytes) -> None:
    assert api.post(core(ns, "configmaps"), body).status == 400
    assert api.post(own(ns, "runs"), body).status == 400


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": "text"},
        {"metadata": {"name": 5}},
        {"metadata": {"name": "a", "labels": {"x": 1}}},
        {"metadata": {"name": "a", "labels": ["x"]}},
        {"metadata": {"name": "a", "finalizers": "x"}},
        {"metadata": {"name": "a"}, "data": "text"},
    ],
    ids=["metadata", "name", "label-value", "labels", "finalizers", "data"],
)
def test_body_of_wrong_types_is_refused(api: Rest, ns: str, body: dict[str, object]) -> None:
    assert api.post(core(ns, "configmaps"), body).status in (400, 422)


def test_body_of_an_unknown_type_is_refused(api: Rest, ns: str) -> None:
    answer = api.post(core(ns, "configmaps"), b"x", content_type="text/plain")
    refused(answer, 415, "UnsupportedMediaType")


def test_answer_of_an_unknown_type_is_refused(api: Rest, ns: str) -> None:
    answer = api.get(core(ns, "configmaps"), headers={"Accept": "text/html"})
    refused(answer, 406, "NotAcceptable")


def test_body_of_more_than_three_mebibytes_is_refused(api: Rest, ns: str) -> None:
    body = config_map("a", {"k": "x" * (3 * 1024 * 1024)})
    refused(api.post(core(ns, "configmaps"), body), 413, "RequestEntityTooLarge")


def test_object_of_almost_a_mebibyte_is_kept(api: Rest, ns: str) -> None:
    body = config_map("a", {"k": "x" * 1000 * 1000})
    ok(api.post(core(ns, "configmaps"), body), 201)
    assert len(ok(api.get(core(ns, "configmaps", "a")))["data"]["k"]) == 1000 * 1000


def test_data_of_more_than_a_mebibyte_is_refused(api: Rest, ns: str) -> None:
    body = config_map("a", {"k": "x" * (1024 * 1024 + 1)})
    refused(api.post(core(ns, "configmaps"), body), 422, "Invalid")


@pytest.mark.parametrize(
    "path", ["/nowhere", "/apis/nowhere.dev/v1", "/api/v2", "/apis/windlass.dev/v9"]
)
def test_unknown_path_is_not_found(api: Rest, path: str) -> None:
    assert api.get(path).status == 404


def test_resource_version_on_create_is_refused(api: Rest, ns: str) -> None:
    answer = api.post(core(ns, "configmaps"), config_map("a", resourceVersion="5"))
    assert answer.status >= 400
    assert api.get(core(ns, "configmaps", "a")).status == 404


@pytest.mark.parametrize("limit", ["x", "1.5"])
def test_bad_limit_is_refused(api: Rest, ns: str, limit: str) -> None:
    assert api.get(core(ns, "configmaps"), limit=limit).status == 400


@pytest.mark.parametrize(
    "path",
    ["/version/", "/api/", "/apis/", "/api/v1/", "/apis/windlass.dev/v1alpha1/", "/api/v1/pods/"],
)
def test_slash_at_the_end_changes_nothing(api: Rest, path: str) -> None:
    with_slash, without = ok(api.get(path)), ok(api.get(path.rstrip("/")))
    assert with_slash.keys() == without.keys()
    assert with_slash.get("kind") == without.get("kind")
