"""Sets of array indices: what users write, what is stored, and how large that gets."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.kinds.values import index_set

INDICES = st.sets(st.integers(0, index_set.HIGHEST_INDEX), max_size=300)
DENSE = st.sets(st.integers(0, 60))


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("0", [0]),
        ("0-3", [0, 1, 2, 3]),
        ("1,4,7", [1, 4, 7]),
        ("0-9:4", [0, 4, 8]),
        ("3-4,1,3", [1, 3, 4]),
        ("0-5:1", [0, 1, 2, 3, 4, 5]),
        ("99999", [99999]),
    ],
)
def test_the_syntax_of_slurm_is_read(text, indices):
    assert list(index_set.members(index_set.parse(text))) == indices


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a", "not an index or a range"),
        ("3-", "not an index or a range"),
        ("1,,2", "not an index or a range"),
        ("100000", "not an index or a range"),
        ("5-3", "lower end first"),
        ("0-9:0", "is empty"),
        ("", "at least one index"),
        ("0-10000", "has 10001 indices"),
    ],
)
def test_what_is_no_array_is_refused_with_a_sentence(text, problem):
    with pytest.raises(ValueError, match=problem):
        index_set.parse_array(text)


@given(INDICES | DENSE)
def test_a_set_is_read_as_it_was_written(indices):
    stored = index_set.text(index_set.of(indices))
    assert list(index_set.members(index_set.parse(stored))) == sorted(indices)


@given(DENSE)
def test_a_written_set_is_no_longer_than_the_list_of_its_indices(indices):
    stored = index_set.text(index_set.of(indices))
    assert len(stored) <= len(",".join(map(str, indices)))
    assert index_set.text(index_set.parse(stored)) == stored


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ([0, 1, 2, 3, 4, 7], "0-4,7"),
        ([0, 2, 4, 6], "0-6:2"),
        ([0, 2, 4, 5, 6], "0-2:2,4-6"),
        ([5, 9], "5,9"),
        ([], ""),
    ],
)
def test_ranges_and_steps_are_found(indices, text):
    read = index_set.parse(index_set.text(index_set.of(indices)))
    assert read == index_set.parse(text)
    assert len(index_set.text(read)) <= len(text) + 2


def test_ten_thousand_indices_in_the_worst_order_stay_below_64_kib():
    wanted = list(range(90_000, 100_000))
    parts = [0, 0, 0]
    for index in wanted:
        parts[random.Random(index).randrange(3)] |= 1 << index
    assert sum(len(index_set.text(part)) for part in parts) < 60_100


@pytest.mark.parametrize(
    ("text", "split"), [("0-99%8", ("0-99", 8)), ("1,4", ("1,4", None)), ("0-9%10", ("0-9", 10))]
)
def test_the_limit_is_split_off(text, split):
    assert index_set.split_limit(text) == split


@pytest.mark.parametrize("text", ["0-9%", "0-9%0", "0-9%x"])
def test_a_limit_that_is_no_number_is_refused(text):
    with pytest.raises(ValueError, match="is not a limit"):
        index_set.split_limit(text)


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 40))
def test_a_range_with_a_step_has_the_indices_of_python(first, length, step):
    read = index_set.parse(f"{first}-{first + length}:{step}")
    assert list(index_set.members(read)) == list(range(first, first + length + 1, step))


def test_a_range_with_a_step_is_read_without_a_loop_over_its_indices(monkeypatch):
    monkeypatch.setattr(index_set, "of", None)
    assert index_set.parse(",".join(["0-99999:2"] * 200)).bit_count() == 50_000
