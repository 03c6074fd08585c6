import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.model.types import DeviceRequest, Role, Workload
from windlass.core.prediction import hazard, predictor
from windlass.core.prediction import history as prediction_history
from windlass.core.prediction.predictor import History


def workload(key="u", history_key="", gpus=1, attained=0.0, expected=None) -> Workload:
    worker = Role("worker", 1, 1, {}, (DeviceRequest("gpu", gpus),))
    return Workload(
        key, "q", (worker,), history_key=history_key, attained=attained, expected=expected
    )


def seen(*ended: tuple[str, float], gpus=1) -> History:
    """A history in which workloads of these kins ran for so long, one after another."""
    history = History()
    for number, (history_key, ran) in enumerate(ended):
        each = workload(f"{history_key}-{number}", history_key, gpus)
        history.register(each)
        history.observe(each, ran)
    return history


# --- what is learned ----------------------------------------------------------------------------


def test_nothing_is_said_about_seconds_before_enough_was_seen():
    history = seen(*[("team", 100.0)] * (predictor.ENOUGH_IN_GROUP - 1))
    assert history.expected(workload("new", "team")) is None
    history.observe(workload("one-more", "team"), 100.0)
    assert history.expected(workload("new", "team")) is not None
    assert history.expected(workload("new", "stranger")) is None


def test_strangers_are_judged_by_their_size_once_many_of_it_ended():
    history = seen(*[(f"team-{n}", 1000.0) for n in range(predictor.ENOUGH_SIMILAR)])
    found = history.expected(workload("new", "stranger"))
    assert found == pytest.approx(1000.0, rel=0.5)
    assert history.expected(workload("new", "stranger", gpus=8)) is None


@pytest.mark.parametrize("ran", [60.0, 1000.0, 40_000.0, 900_000.0])
def test_what_workloads_alike_did_is_expected_again(ran):
    history = seen(*[("team", ran)] * 20)
    found = history.at(0.0).quantile(workload("new", "team"), 0.5)
    assert ran <= found <= ran * hazard.GROWTH + hazard.FIRST


def test_expected_is_rather_too_long_than_too_short():
    history = seen(*[("team", 100.0 * n) for n in range(1, 21)])
    assert history.expected(workload("new", "team")) >= 1500.0


def test_what_a_workload_has_had_is_not_expected_again():
    history = seen(*[("team", 100.0), ("team", 10_000.0)] * 10)
    assert history.at(0.0).quantile(workload("new", "team"), 0.3) < 200.0
    assert history.at(0.0).quantile(workload("new", "team"), 0.5, attained=500.0) > 9000.0


def test_the_kin_that_ends_soon_goes_first():
    history = seen(*[("short", 100.0), ("long", 50_000.0)] * 10)
    assert (
        history.index(workload("a", "short"), 0.0) < history.index(workload("b", "long"), 0.0) / 5
    )


def test_of_two_alike_the_one_with_fewer_devices_goes_first():
    history = History()
    assert history.index(workload("a", gpus=8), 0.0) == 8 * history.index(
        workload("b", gpus=1), 0.0
    )


def test_before_anything_is_known_the_least_attained_service_comes_first():
    history = History()
    indexes = [history.index(workload(), attained) for attained in (0.0, 100.0, 1e4, 1e6)]
    assert indexes == sorted(set(indexes))


def test_near_its_usual_end_a_workload_goes_before_a_fresh_one():
    history = seen(*[("team", 10_000.0)] * 200)
    fresh, nearly = (history.index(workload("u", "team"), attained) for attained in (0.0, 9_500.0))
    assert nearly < fresh / 5


def test_workloads_submitted_close_by_tell_more_than_those_far_off():
    history = seen(*[("team", 100_000.0)] * 30, *[("team", 100.0)] * 6)
    assert history.at(0.0).quantile(workload("next", "team"), 0.5) < 200.0


def test_other_sizes_of_the_same_kin_tell_something():
    history = seen(*[("team", 100.0)] * 50, *[("others", 1e6)] * 50)
    near, far = (
        history.index(workload("new", history_key, gpus=4), 0.0)
        for history_key in ("team", "nobody")
    )
    assert near < far


# --- what is not known --------------------------------------------------------------------------


def test_those_that_still_run_count_as_not_ended_yet():
    history = seen(*[("team", 1000.0)] * 5)
    before = history.at(0.0).index(workload("new", "team"), 0.0)
    for number in range(5):
        history.register(workload(f"runs-{number}", "team"), started=0.0)
    assert history.at(100_000.0).index(workload("new", "team"), 0.0) > 1.5 * before


def test_one_that_was_taken_away_did_not_end():
    history = seen(*[("team", 1000.0)] * 5)
    before = history.index(workload("new", "team"), 0.0)
    history.register(workload("cancelled", "team"), started=0.0)
    history.remove("cancelled", 100_000.0)
    assert history.index(workload("new", "team"), 0.0) > before


def test_what_a_workload_says_of_itself_changes_no_index():
    history = seen(*[("team", 1000.0)] * 5)
    honest, boasting = workload("u", "team"), workload("u", "team", expected=1.0)
    assert history.index(honest, 50.0) == history.index(boasting, 50.0)


def test_asking_about_a_later_time_does_not_change_what_is_said_about_an_earlier_one():
    history = seen(*[("team", 1000.0)] * 5)
    for number in range(5):
        history.register(workload(f"runs-{number}", "team"), started=0.0)
    asked = workload("runs-2", "team")
    early = history.at(500.0).index(asked, 500.0)
    late = history.at(1e6).index(asked, 500.0)
    assert early != late
    assert history.at(500.0).index(asked, 500.0) == early


# --- any sequence -------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["wait", "run", "leave", "end"]),
        st.integers(0, 11),
        st.floats(0, 1e6, allow_nan=False),
    ),
    max_size=60,
)


def follow(history: History, steps) -> History:
    for what, number, seconds in steps:
        each = workload(f"u{number}", f"history_key{number % 3}", 1 + number % 2, attained=seconds)
        match what:
            case "wait":
                history.register(each)
            case "run":
                history.register(each, started=seconds)
            case "leave":
                history.remove(each.key, seconds)
            case "end":
                history.observe(each, seconds)
    return history


def answers(history: History, now: float) -> list[object]:
    outlook = history.at(now)
    asked = [workload(f"u{n}", f"history_key{n % 3}", 1 + n % 2) for n in range(13)]
    return [
        (outlook.index(each, attained), outlook.quantile(each, 0.5, attained))
        for each in asked
        for attained in (0.0, 5000.0)
    ]


@given(STEPS, st.floats(0, 2e6))
def test_a_history_that_was_written_down_and_read_says_the_same(steps, now):
    history = follow(History(), steps)
    again = History.from_state(json.loads(json.dumps(history.to_state())))
    assert answers(again, now) == answers(history, now)


@given(STEPS, st.lists(st.floats(0, 2e6), max_size=8), st.floats(0, 2e6))
def test_questions_on_the_way_change_nothing(steps, times, now):
    asked = History()
    for place, step in enumerate(steps):
        follow(asked, [step])
        for time in times[place : place + 1]:
            answers(asked, time)
    assert answers(asked, now) == answers(follow(History(), steps), now)


@given(STEPS, st.floats(0, 2e6))
def test_an_index_is_a_positive_number(steps, now):
    for index, _ in answers(follow(History(), steps), now):
        assert 0 < index < float("inf")


def test_what_is_remembered_does_not_grow_with_what_was_seen():
    history = seen(*[("team", 100.0)] * 2000)
    (_, entries) = history.to_state()["evidence"]["lines"]["team"]
    assert len(entries) < 500 + 4 * prediction_history.KEPT


def test_kins_that_submit_nothing_any_more_are_forgotten(monkeypatch):
    monkeypatch.setattr(prediction_history, "GROUPS", 5)
    history = seen(*[(f"team-{n}", 100.0) for n in range(20)])
    assert list(history.to_state()["evidence"]["lines"]) == [f"team-{n}" for n in range(15, 20)]


# --- the arithmetic -----------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1), min_size=hazard.BINS, max_size=hazard.BINS),
       st.integers(0, hazard.BINS - 1))  # fmt: skip
def test_seconds_per_end_is_the_best_stint_of_all(hazards, age):
    found = hazard.seconds_per_end(np.array([hazards]), np.array([age]))[0]
    alive, spent, best = 1.0, 0.0, float("inf")
    ends = [hazard.FIRST * hazard.GROWTH**k for k in range(hazard.BINS)]
    for place in range(age, hazard.BINS):
        width = ends[place] - (ends[place - 1] if place else 0.0)
        left = alive * (1 - min(max(hazards[place], 1e-9), 1 - 1e-9))
        spent += width * (alive + left) / 2
        alive = left
        best = min(best, spent / max(1 - alive, 1e-300))
    assert found == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize(
    ("ran", "before", "defended"),
    [(599, 0, 0.0), (600, 0, 25.0), (600, 5000, 0.0), (999, 5000, 0.0), (1000, 5000, 25.0)],
)
def test_a_running_workload_yields_only_to_a_clearly_better_one(ran, before, defended):
    patience = predictor.Hysteresis(factor=4.0, min_run=600.0, min_share=0.2)
    assert patience.defended(100.0, ran, before) == defended


def test_after_a_run_of_long_workloads_others_are_tried_before_those_are_half_through():
    """Workloads come in runs that are alike: a hundred long ones say little about the next kin."""
    history = seen(*[("team", 65_000.0)] * 100)
    half_through = predictor.EAGER.defended(
        history.index(workload("u", "team"), 32_000.0), 32_000.0, 0.0
    )
    assert history.index(workload("new", "other"), 0.0) < half_through


def test_between_aging_steps_nothing_is_learned_from_running_workloads():
    history = seen(("team", 100.0), ("team", 5000.0))
    history.register(workload("runs", "team"), started=0.0)
    looked_at, next_look = 601.0, 1201.0
    just, still, later = (
        history.at(at).index(workload("new", "team"), 700.0)
        for at in (looked_at, next_look - 2, next_look)
    )
    assert just == still < later


def test_a_workload_that_changes_its_size_stands_anew_in_its_line():
    history = seen(*[("team", 100.0)] * 5)
    small = workload("u", "team", gpus=1)
    history.register(small)
    history.register(dataclasses.replace(small, roles=workload(gpus=8).roles))
    assert history.index(workload("u", "team", gpus=8), 0.0) > history.index(
        workload("v", "team"), 0.0
    )
