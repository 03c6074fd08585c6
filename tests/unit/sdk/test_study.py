"""The driver of a study: what it does with what happens to trials."""

from __future__ import annotations

import pytest

from windlass.sdk.tuning import study
from windlass.sdk.tuning.definition import define
from windlass.sdk.tuning.evaluation import Broken, Ended, Reported
from windlass.sdk.tuning.suggestions import Suggestions
from windlass.store import errors


class Records:
    """The stored trials."""

    def __init__(self, *_):
        self.stored = []

    async def store(self, changed):
        self.stored += [(each.number, each.state, each.message) for each in changed]


class Client:
    aio = None


@pytest.fixture
def driver(monkeypatch):
    """A study with two trials in evaluation, and its suggestions."""
    monkeypatch.setattr(study, "StudyClient", Records)
    definition = define({"x": "1..9"})
    made = study.Study("s", definition, study.Limits(9, 2, 9), Client(), lambda _: None)
    suggestions = Suggestions(definition, [])
    for trial in (suggestions.next(), suggestions.next()):
        made._trials.append(trial)
        made._running[trial.number] = trial
    return made, suggestions


def test_what_ended_before_the_study_broke_is_stored(driver):
    made, suggestions = driver
    problem = errors.Conflict("another program")
    with pytest.raises(errors.Conflict, match="another program"):
        made._handle(suggestions, [Ended(0, [1.0]), Broken(problem), Ended(1, [2.0])])
    assert made._client.stored == [(0, "complete", "")]


def test_each_report_is_answered(driver):
    """A worker waits for the answer, also one whose call was given to another worker meanwhile."""
    made, suggestions = driver
    answers = []
    made._handle(suggestions, [Reported(0, 0, 1.0, answers.append), Ended(0, [1.0])])
    made._handle(suggestions, [Reported(0, 1, 1.0, answers.append)])
    assert answers == [False, True]


def test_the_reason_of_a_failure_is_bounded(driver):
    made, suggestions = driver
    made._handle(suggestions, [Ended(0, message="x" * 100_000)])
    ((_, state, message),) = made._client.stored
    assert (state, len(message)) == ("failed", 1000)
