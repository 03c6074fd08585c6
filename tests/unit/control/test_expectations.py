"""When a leader may believe its cache about the pods of a Run."""

from __future__ import annotations

from tests.unit.control import build
from windlass.control.runs.expectations import PodExpectations


def test_nothing_is_known_of_an_attempt_of_another_controller():
    known, owner = PodExpectations(), build.a_run()
    assert not known.satisfied(owner, [])
    known.begin(owner)
    assert known.satisfied(owner, [])
    owner.status.attempt = 1
    assert not known.satisfied(owner, [])


def test_a_pod_counts_until_the_cache_has_shown_it():
    known, owner = PodExpectations(), build.a_run()
    known.begin(owner)
    pod = build.pod(owner)
    pod.metadata.uid = "p1"
    known.creating(pod)
    assert not known.satisfied(owner, []), "nobody knows whether it was made"
    known.created(pod)
    assert not known.satisfied(owner, [])
    assert known.satisfied(owner, [pod])
    assert known.satisfied(owner, []), "it was there and has gone"


def test_another_pod_of_the_same_name_is_another():
    known, owner = PodExpectations(), build.a_run()
    known.begin(owner)
    old, new = build.pod(owner), build.pod(owner)
    old.metadata.uid, new.metadata.uid = "old", "new"
    for pod in (old, new):
        known.creating(pod)
        known.created(pod)
    assert not known.satisfied(owner, [old])
    assert known.satisfied(owner, [new])


def test_what_ended_is_forgotten():
    known, owner = PodExpectations(), build.a_run()
    known.begin(owner)
    known.forget(owner)
    assert not known.satisfied(owner, [])
