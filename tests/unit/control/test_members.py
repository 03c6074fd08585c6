"""Pods of members carry what the user wrote, as it was written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from windlass.agent import environment
from windlass.control import podrender


@given(st.text("$()ABC a", max_size=12))
def test_text_survives_the_expansion_that_pods_go_through(text: str) -> None:
    assert environment.expand(podrender.literal(text), {"A": "filled in"}) == text
