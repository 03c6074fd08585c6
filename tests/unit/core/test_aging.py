import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from windlass.core.prediction import aging

SECONDS = st.floats(0, 1e9)


@given(SECONDS)
def test_the_next_look_lies_ahead(seconds):
    ahead = aging.next_age(seconds)
    assert ahead > seconds
    assert aging.next_age(ahead) > ahead


@given(SECONDS, SECONDS)
def test_a_workload_counts_with_the_age_of_its_last_look_and_no_less_than_it_had(before, ran):
    age = aging.age(before, ran)
    assert before <= age <= before + ran + 1e-5
    assert aging.ages(np.array([before]), np.array([ran])).tolist() == [age]


@given(st.floats(0, 1e7), st.floats(0, 1e7), st.floats(0, 1e6), st.floats(0, 0.999))
def test_until_the_next_look_its_rank_does_not_change(before, ran, alone, part):
    (ahead,) = aging.next_rank_changes(
        ran, np.zeros(1), np.array([before]), np.array([alone])
    ).tolist()
    assert ahead > ran
    between = ran + part * (ahead - ran)
    assume(ahead - between > 1e-4)
    assert aging.age(before, between) == aging.age(before, ran)
    assert (between < alone - 1e-6) == (ran < alone - 1e-6)
    aged, free = aging.age(before, ahead) > aging.age(before, ran), ran < alone - 1e-6 <= ahead
    assert aged or free, "there is a reason to look"


@pytest.mark.parametrize(
    ("before", "ran", "age"), [(0, 599, 0), (0, 600, 600), (700, 400, 700), (700, 500, 1200)]
)
def test_looks_come_at_the_first_age_and_at_multiples_of_it(before, ran, age):
    assert aging.age(before, ran) == age
