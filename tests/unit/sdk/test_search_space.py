"""Parameters of a study, as users write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.sdk.tuning import search_space
from windlass.sdk.tuning.search_space import Parameter


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("1..4", Parameter("int", 1, 4)),
        ("-3..4", Parameter("int", -3, 4)),
        ("16..128:16", Parameter("int", 16, 128, 16)),
        ("0..0.5", Parameter("float", 0, 0.5)),
        ("0.0..1.0:0.25", Parameter("float", 0.0, 1.0, 0.25)),
        ("log:1e-5..1e-1", Parameter("float", 1e-5, 1e-1, None, True)),
        ("log:1..1000", Parameter("int", 1, 1000, None, True)),
        ("adam,sgd", Parameter("choice", choices=("adam", "sgd"))),
        ("32,64,auto", Parameter("choice", choices=(32, 64, "auto"))),
        ((0.1, 0.9), Parameter("float", 0.1, 0.9)),
        ([1, 2], Parameter("choice", choices=(1, 2))),
        ({"log": [1e-4, 1e-1]}, Parameter("float", 1e-4, 1e-1, None, True)),
        ({"int": [1, 9], "step": 2}, Parameter("int", 1, 9, 2)),
        ({"float": [1, 2]}, Parameter("float", 1.0, 2.0)),
    ],
)  # fmt: skip
def test_each_form_is_read(written, found):
    assert search_space.read({"x": written}) == {"x": found}


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("4..1", "must be less than"),
        ("log:0..1", "above 0"),
        ("adam", "no range and no list"),
        ("a..b", "bound that is not a number"),
        ("1..4:9", "does not fit"),
        ("x,x", "given twice"),
        ({"int": [1, 2], "log": [1, 2]}, "one of int"),
        ({"int": ["1", 2]}, "pair of numbers"),
        (None, "no range"),
    ],
)
def test_what_is_wrong_is_said_with_the_name(written, why):
    with pytest.raises(ValueError, match=f"^parameter x: .*{why}"):
        search_space.read({"x": written})


def test_names_are_checked():
    with pytest.raises(ValueError, match="not a name"):
        search_space.read({"a-b": "1..2"})
    with pytest.raises(ValueError, match="no parameter"):
        search_space.read({})


_BOUNDS = st.tuples(st.integers(1, 50), st.integers(51, 100))
_PARAMETERS = st.one_of(
    _BOUNDS.map(lambda each: Parameter("int", *each)),
    st.tuples(_BOUNDS, st.integers(1, 5)).map(lambda each: Parameter("int", *each[0], each[1])),
    _BOUNDS.map(lambda each: Parameter("float", each[0] / 7, each[1] / 7)),
    _BOUNDS.map(lambda each: Parameter("float", each[0] / 7, each[1] / 7, None, True)),
    st.lists(st.text(max_size=4), min_size=1, max_size=4, unique=True).map(
        lambda each: Parameter("choice", choices=tuple(each))
    ),
)


@given(_PARAMETERS)
def test_what_is_stored_is_read_again(parameter):
    assert search_space.read({"x": search_space.plain(parameter)}) == {"x": parameter}


@given(_PARAMETERS.filter(lambda each: each.kind != "float"))
def test_a_grid_has_only_values_of_the_distribution(parameter):
    distribution = parameter.distribution()
    for value in parameter.grid():
        assert distribution._contains(distribution.to_internal_repr(value))
