"""Selectors: Kubernetes' grammar, its rules for absent labels, refusals that say what is wrong."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.kinds import kubernetes
from windlass.store import errors, selectors

POD = kubernetes.Pod.resource


def matches(
    selector: str, labels: dict[str, str] | None = None, fields: str = "", **body: object
) -> bool:
    data = msgspec.json.encode({"metadata": {"name": "p", "labels": labels}, **body})
    return selectors.parse(POD, selector, fields).matches(data)


@pytest.mark.parametrize(
    ("selector", "labels", "selected"),
    [
        ("", None, True),
        ("a=1", {"a": "1"}, True),
        ("a==1", {"a": "1"}, True),
        ("a=1", {"a": "2"}, False),
        ("a!=1", {}, True),
        ("a!=1", {"a": "1"}, False),
        ("a in (1,2)", {"a": "2"}, True),
        ("a in (1, 2)", {}, False),
        ("a notin (1,2)", {}, True),
        ("a notin (1,2)", {"a": "1"}, False),
        ("a", {"a": ""}, True),
        ("a", None, False),
        ("!a", {}, True),
        ("! a", {"a": "x"}, False),
        ("a=1,b in (x,y),!c", {"a": "1", "b": "y"}, True),
        ("example.com/a-b=v.1_2", {"example.com/a-b": "v.1_2"}, True),
        ("a=", {"a": ""}, True),
        ("a>5", {"a": "6"}, True),
        ("a<5", {"a": "6"}, False),
        ("a>5", {"a": "six"}, False),
    ],
)
def test_labels(selector: str, labels: dict[str, str] | None, selected: bool) -> None:
    assert matches(selector, labels) is selected


@pytest.mark.parametrize(
    "selector", ["a in 1", "a in (1", "=1", "a=b c", "-a=1", "a=1,,b=2", ",", "a&b"]
)
def test_labels_that_cannot_be_read_are_refused(selector: str) -> None:
    with pytest.raises(errors.BadRequest):
        selectors.parse(POD, selector, "")


@pytest.mark.parametrize(
    ("fields", "selected"),
    [
        ("metadata.name=p", True),
        ("metadata.name!=p", False),
        ("spec.nodeName=n1,status.phase!=Failed", True),
        ("spec.nodeName=", False),
        ("spec.hostNetwork=false", True),
    ],
)
def test_fields(fields: str, selected: bool) -> None:
    body = {"spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}
    assert matches("", None, fields, **body) is selected


def test_an_unknown_field_is_refused_with_the_known_ones() -> None:
    with pytest.raises(errors.BadRequest, match=r"spec\.color.*spec\.nodeName"):
        selectors.parse(POD, "", "spec.color=red")


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_is_read_or_refused(labels: str, fields: str) -> None:
    try:
        selector = selectors.parse(POD, labels, fields)
    except errors.BadRequest:
        return
    assert selector.matches(b'{"metadata":{"name":"p"}}') in (True, False)
