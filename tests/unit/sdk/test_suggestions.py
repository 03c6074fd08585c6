"""Samplers and pruners over stored trials: as Optuna alone, and again after an interruption."""

from __future__ import annotations

import itertools

import optuna
import pytest

from windlass.sdk.tuning import trials as trial_records
from windlass.sdk.tuning.definition import define, from_plain
from windlass.sdk.tuning.suggestions import Suggestions, is_usable
from windlass.sdk.tuning.trials import Trial

SPACE = {"lr": "log:1e-5..1e-1", "layers": "1..4", "opt": "adam,sgd"}


def cost(params):
    return abs(params["lr"] - 1e-3) + params["layers"] + (params["opt"] == "sgd")


def complete(suggestions, trial, value):
    trial.state, trial.values = "complete", [value]
    suggestions.end(trial)
    return trial


def test_one_at_a_time_the_parameters_are_those_of_optuna_alone():
    suggestions = Suggestions(define(SPACE, seed=7, sampler="tpe"), [])
    ours = []
    for _ in range(30):
        trial = suggestions.next()
        ours.append(dict(trial.params))
        complete(suggestions, trial, cost(trial.params))

    def objective(trial):
        return cost(
            {
                "lr": trial.suggest_float("lr", 1e-5, 1e-1, log=True),
                "layers": trial.suggest_int("layers", 1, 4),
                "opt": trial.suggest_categorical("opt", ["adam", "sgd"]),
            }
        )

    alone = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=7))
    alone.optimize(objective, n_trials=30)
    assert ours == [each.params for each in alone.trials]


def test_a_study_that_is_opened_again_knows_its_trials_and_continues_their_numbers():
    definition = define(SPACE, seed=1)
    first = Suggestions(definition, [])
    stored = [complete(first, trial, cost(trial.params)) for trial in (first.next(), first.next())]
    running = first.next()
    again = [
        trial_records.from_record(trial_records.to_record(each)) for each in (*stored, running)
    ]
    second = Suggestions(from_plain(definition.plain()), again)
    assert not second.prunes(again[2], 0, 1.0)
    complete(second, again[2], 3.0)
    assert second.next().number == 3
    with pytest.raises(ValueError, match="Cannot tell"):
        second.end(again[0])


def test_a_grid_is_visited_once_each_also_after_an_interruption():
    definition = define({"a": "1..3", "b": ["x", "y"]}, sampler="grid")
    first = Suggestions(definition, [])
    stored = [complete(first, trial, 1.0) for trial in (first.next(), first.next())]
    second = Suggestions(definition, stored)
    more = list(iter(second.next, None))
    visited = [(each.params["a"], each.params["b"]) for each in (*stored, *more)]
    assert sorted(visited) == sorted(itertools.product((1, 2, 3), ("x", "y")))


def test_the_median_prunes_a_trial_that_is_worse_than_the_others():
    suggestions = Suggestions(define({"x": "0.0..1.0"}, prune="median", seed=0), [])
    for _ in range(6):
        trial = suggestions.next()
        assert not any(suggestions.prunes(trial, step, 1.0) for step in range(3))
        complete(suggestions, trial, 1.0)
    bad = suggestions.next()
    assert suggestions.prunes(bad, 0, 100.0)


def test_the_best_of_several_metrics_are_those_that_no_other_dominates():
    made = [
        Trial(number, {}, "complete", values)
        for number, values in enumerate(([1.0, 5.0], [2.0, 2.0], [3.0, 3.0], [5.0, 9.0]))
    ]
    found = trial_records.best(made, ("minimize", "maximize"))
    assert [each.number for each in found] == [0, 3]
    assert trial_records.best(made, ("minimize", "minimize")) == [made[0], made[1]]
    assert trial_records.best([], ("minimize",)) == []


def test_trials_of_several_metrics_report_and_are_never_pruned():
    definition = define({"x": "1..9"}, metric=["loss", "size"])
    suggestions = Suggestions(definition, [])
    trial = suggestions.next()
    assert not any(suggestions.prunes(trial, step, 1.0) for step in range(3))
    assert trial.reports == {0: 1.0, 1: 1.0, 2: 1.0}
    assert Suggestions(definition, [trial]).next().number == 1


def test_a_grid_of_decimal_steps_continues_after_its_last_value():
    definition = define({"x": "0.0..0.3:0.1"}, sampler="grid")
    first = Suggestions(definition, [])
    stored = [complete(first, trial, 1.0) for trial in iter(first.next, None)]
    assert len(stored) == 4
    assert Suggestions(definition, stored).next() is None


def test_a_record_of_many_reports_is_bounded_and_has_the_last_one():
    for count in (0, 1, 999, 1000, 1001, 50_000):
        trial = Trial(0, {}, reports=dict.fromkeys(range(count), 0.123456789012345))
        kept = [step for step, _ in trial_records.to_record(trial)["body"]["reports"]]
        assert len(kept) <= 1000
        assert kept[-1:] == list(range(count))[-1:]
        assert count > 1000 or len(kept) == count


def test_only_finite_numbers_are_values():
    assert is_usable([1, 2.5], 2)
    for value in (float("inf"), float("nan"), None, "1"):
        assert not is_usable([value], 1)


def test_a_grid_that_fills_the_memory_is_refused():
    for written in ("1..1000000000", "0.0..1000.0:0.0001"):
        with pytest.raises(ValueError, match=r"parameter x: its grid has \d+ values"):
            define({"x": written}, sampler="grid")


def test_a_grid_needs_an_end():
    with pytest.raises(ValueError, match="parameter x: a decimal range"):
        define({"x": "0.0..1.0"}, sampler="grid")
