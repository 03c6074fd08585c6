"""Selectors: Kubernetes' grammar, its rules for absent labels, refusals that say what is wrong."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.kinds.types import core
from windlass.store import errors, selectors

POD = core.Pod.resource


def matches(
    selector: str, labels: dict[str, str] | None = None, fields: str = "", **body: object
) -> bool:
    data = msgspec.json.encode({"metadata": {"name": "p", "labels": labels}, **body})
    parsed = selectors.parse(POD, selector, fields)
    selected = parsed.matches(data)
    assert parsed.mark in data or not selected, "objects without the mark are not even looked at"
    return selected


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
        ("spec.hostNetwork=false", False),
        ("spec.hostNetwork=true", True),
        ("status.podIP=10.0.0.1", True),
    ],
)
def test_fields(fields: str, selected: bool) -> None:
    status = {"phase": "Running", "podIP": "10.0.0.1"}
    body = {"spec": {"nodeName": "n1", "hostNetwork": True}, "status": status}
    assert matches("", None, fields, **body) is selected


def test_an_absent_flag_is_selected_by_false() -> None:
    assert matches("", None, "spec.hostNetwork=false", spec={})


def test_what_must_be_there_is_known_of_equalities() -> None:
    assert selectors.parse(POD, "a,b=1,windlass.dev/run=x", "").mark == b'"windlass.dev/run":"x"'
    assert selectors.parse(POD, "", "spec.nodeName=n1").mark == b'"nodeName":"n1"'
    assert selectors.parse(POD, "a in (1,2),b!=3,!c", "spec.nodeName!=n1").mark == b""


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
