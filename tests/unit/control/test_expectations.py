"""When a leader may believe its cache about the pods of a Run."""

from __future__ import annotations

from tests.unit.control import build
from windlass.control.begun import Begun


def test_of_an_attempt_that_somebody_else_began_nothing_is_known():
    known, owner = Begun(), build.a_run()
    assert not known.all_shown(owner, [])
    known.begin(owner)
    assert known.all_shown(owner, [])
    owner.status.attempt = 1
    assert not known.all_shown(owner, [])


def test_a_pod_counts_until_the_cache_has_shown_it():
    known, owner = Begun(), build.a_run()
    known.begin(owner)
    pod = build.pod(owner)
    pod.metadata.uid = "p1"
    known.making(pod)
    assert not known.all_shown(owner, []), "nobody knows whether it was made"
    known.made(pod)
    assert not known.all_shown(owner, [])
    assert known.all_shown(owner, [pod])
    assert known.all_shown(owner, []), "it was there and has gone"


def test_another_pod_of_the_same_name_is_another():
    known, owner = Begun(), build.a_run()
    known.begin(owner)
    old, new = build.pod(owner), build.pod(owner)
    old.metadata.uid, new.metadata.uid = "old", "new"
    for pod in (old, new):
        known.making(pod)
        known.made(pod)
    assert not known.all_shown(owner, [old])
    assert known.all_shown(owner, [new])


def test_what_ended_is_forgotten():
    known, owner = Begun(), build.a_run()
    known.begin(owner)
    known.forget(owner)
    assert not known.all_shown(owner, [])
