"""What is refused, where and in which words; what is filled in; what is dropped."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kinds import cases
from tests.unit.kinds.cases import Json
from windlass.kinds import validate
from windlass.kinds.schema.field_errors import Problem
from windlass.kinds.types import queue, run


def problems_of(value: Json, old: Json | None = None) -> list[Problem]:
    """As the embedded server does it: prune, fill in, validate."""
    kind = cases.KINDS[value["kind"]]
    prepared = [
        None if one is None else validate.defaulted(kind, validate.prune(kind, one)[0])
        for one in (value, old)
    ]
    assert prepared[0] is not None
    return validate.validate(kind, prepared[0], prepared[1])


@pytest.mark.parametrize("name", cases.GOOD)
def test_good_objects_are_accepted(name: str) -> None:
    assert [str(problem) for problem in problems_of(cases.GOOD[name])] == []


@pytest.mark.parametrize("name", cases.BAD)
def test_bad_objects_are_refused_at_their_field_with_a_remedy(name: str) -> None:
    bad = cases.BAD[name]
    found = {problem.path: problem.message for problem in problems_of(bad.value)}
    assert bad.path in found, found
    assert bad.words in found[bad.path]


@pytest.mark.parametrize("name", cases.CHANGES)
def test_only_some_fields_may_change(name: str) -> None:
    old, new, path = cases.CHANGES[name]
    assert [problem.path for problem in problems_of(new, old)] == ([path] if path else [])


def test_what_was_taken_before_there_was_a_rule_goes_on_as_it_is() -> None:
    old = cases.role(resources={"memory": "1Gi", "shm": "2Gi"})
    assert validate.validate(run.Run, old) != []
    told = old | {"status": {"phase": "Running"}}
    assert validate.validate(run.Run, told, old) == []
    other = cases.role(resources={"memory": "1Gi", "shm": "3Gi"})
    problems = validate.validate(run.Run, other, old)
    assert "spec.roles[0].resources.shm" in {problem.path for problem in problems}


def test_a_run_s_user_is_named_and_stays() -> None:
    assert [p.message for p in problems_of(cases.run_object(user=""))] == [
        'Invalid value: "": must not be empty'
    ]
    anonymous = cases.without(cases.run_object(), "spec", "user")
    assert [p.path for p in problems_of(anonymous, cases.run_object())] == ["spec.user"]


def test_all_problems_are_reported_at_once() -> None:
    value = cases.run_object(priority=-1, framework="x", roles=[{"command": "ls", "replicas": 0}])
    assert {problem.path for problem in problems_of(value)} == {
        "spec.priority", "spec.framework", "spec.roles[0].command", "spec.roles[0].replicas",
    }  # fmt: skip


def test_a_problem_says_where_what_was_found_and_what_is_allowed() -> None:
    [problem] = problems_of(cases.role(replicas=0))
    assert str(problem) == "spec.roles[0].replicas: Invalid value: 0: must be at least 1"
    assert problem.value == 0
    assert problem.reason == "FieldValueInvalid"


def test_unknown_fields_are_dropped_and_the_nearest_name_is_offered() -> None:
    value = cases.role(replica=3, resources={"cpus": 1}) | {"extra": 1}
    value["metadata"]["lables"] = {}
    kept, unknown = validate.prune(run.Run, value)
    assert unknown == [
        'unknown field "metadata.lables": did you mean labels?',
        'unknown field "spec.roles[0].replica": did you mean replicas?',
        'unknown field "spec.roles[0].resources.cpus": did you mean cpu?',
        'unknown field "extra"',
    ]
    assert kept["spec"]["roles"] == [{"command": ["true"], "resources": {}}]
    assert "extra" not in kept
    assert "replica" in value["spec"]["roles"][0], "the input stays as it was"


@pytest.mark.parametrize("memory", [4, "4", "512", "100k", "4m"])
def test_an_amount_of_memory_without_its_unit_is_refused(memory) -> None:
    [problem] = problems_of(cases.role(resources={"memory": memory}))
    assert problem.path == "spec.roles[0].resources.memory"
    assert "must be at least 1Mi; a number without a suffix counts bytes" in problem.message
    assert problems_of(cases.role(resources={"memory": "1Mi"})) == []


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (
            {"roles": [{"resources": {"gpu": 1}}]},
            '"spec.roles[0].resources.gpu": write devices: [{kind: gpu, count: 1}] in the role',
        ),
        (
            {"roles": [{}, {"nvidia.com/gpu": 1}]},
            '"spec.roles[1].nvidia.com/gpu": write devices: [{kind: gpu, count: 1}] in the role',
        ),
        (
            {"roles": [{"resources": {"limits": {"cpu": 1}}}]},
            '"spec.roles[0].resources.limits": write the amounts without it: '
            "resources: {cpu: 2, memory: 4Gi}",
        ),
        ({"command": ["ls"]}, '"spec.command": did you mean spec.roles[0].command?'),
        ({"image": "x"}, '"spec.image": did you mean spec.environment.image?'),
        (
            {"roles": [{}, {"memory": "1Gi"}]},
            '"spec.roles[1].memory": did you mean spec.roles[1].resources.memory?',
        ),
        ({"roles": [{}, {"max": "1h"}]}, '"spec.roles[1].max": did you mean spec.duration.max?'),
        ({"timeout": "1h"}, '"spec.timeout": write duration: {max: 2h}'),
    ],
)
def test_a_field_at_a_wrong_place_gets_a_message_with_the_right_one(spec: Json, told: str) -> None:
    _, unknown = validate.prune(run.Run, cases.run_object(**spec))
    assert unknown == [f"unknown field {told}"]


def test_names_that_users_choose_are_not_unknown_fields() -> None:
    value = cases.role(env={"ANY": "x"}) | {"metadata": {"name": "a", "managedFields": []}}
    assert validate.prune(run.Run, value) == (value, [])


def test_defaults_are_written_into_the_object() -> None:
    filled = validate.defaulted(run.Run, cases.run_object())
    assert filled["spec"] == {
        "roles": [
            {
                "name": "worker", "command": ["true"], "replicas": 1, "resize": "restart",
                "resources": {"cpu": "1", "memory": "1Gi", "shm": "auto"},
            }
        ],
        "user": "admin", "priority": 50, "preemptible": True, "framework": "process",
        "restart": "run",
        "placement": {"gang": True, "pack": "binpack"},
        "retries": {"limit": 3, "causes": ["NodeLost", "Preempted"], "lostAfter": "5m"},
        "checkpoint": {"signal": "SIGTERM", "grace": "30s"},
    }  # fmt: skip
    assert filled["status"] == {"phase": "Queued"}


def test_null_means_absence_so_the_default_holds() -> None:
    value = cases.run_object(priority=None, placement=None, queue=None)
    filled = validate.defaulted(run.Run, value)["spec"]
    assert filled["priority"] == 50
    assert filled["placement"] == {"gang": True, "pack": "binpack"}
    assert "queue" not in filled


def test_defaulting_shares_nothing_between_objects() -> None:
    first = validate.defaulted(run.Run, cases.run_object())
    first["spec"]["retries"]["causes"].append("Failed")
    first["spec"]["placement"]["pack"] = "spread"
    second = validate.defaulted(run.Run, cases.run_object())
    assert second["spec"]["retries"]["causes"] == ["NodeLost", "Preempted"]
    assert second["spec"]["placement"]["pack"] == "binpack"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "spec", "roles", "command", "metadata", "status", "devices",
                             "share", "lend", "guarantee", "x"]),
            inner, max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@given(st.sampled_from(sorted(cases.KINDS)), st.dictionaries(
    st.sampled_from(["metadata", "spec", "status", "other"]), JSON))  # fmt: skip
def test_any_json_is_judged_without_failing_and_without_changing_it(kind: str, value: Json) -> None:
    before = copy.deepcopy(value)
    problems = problems_of({"kind": kind} | value)
    assert value == before
    assert all(problem.message for problem in problems)


@given(st.sampled_from(sorted(cases.GOOD)))
def test_defaulting_and_pruning_twice_changes_nothing_more(name: str) -> None:
    value = cases.GOOD[name]
    kind = cases.KINDS[value["kind"]]
    once = validate.defaulted(kind, validate.prune(kind, value)[0])
    assert validate.defaulted(kind, once) == once
    assert validate.prune(kind, once) == (once, [])


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"halfLife": "7 days"}, "spec.halfLife"),
        ({"userLimits": {"running": -1}}, "spec.userLimits.running"),
        ({"userLimits": {"resources": {"gpu": "many"}}}, "spec.userLimits.resources.gpu"),
        ({"userLimits": {"users": {"ada": {"submitted": 1.5}}}}, "spec.userLimits.users.ada"),
    ],
)
def test_problems_with_users_of_a_queue_are_reported_at_their_field(spec: Json, path: str) -> None:
    (problem,) = problems_of(cases.queue_object(**spec))
    assert problem.path.startswith(path)


def test_the_nearest_name_is_offered_inside_the_limits_of_users() -> None:
    limits = {"ressources": {"gpu": 1}, "users": {"ada": {"runing": 2}}}
    value = cases.queue_object(userFare=True, userLimits=limits)
    _, unknown = validate.prune(queue.Queue, value)
    assert unknown == [
        'unknown field "spec.userFare": did you mean userFair?',
        'unknown field "spec.userLimits.ressources": did you mean resources?',
        'unknown field "spec.userLimits.users.ada.runing": did you mean running?',
    ]


def test_all_ways_to_count_past_use_and_limit_users_are_accepted() -> None:
    for half_life in ("0s", "7d", "1h30m"):
        assert problems_of(cases.queue_object(halfLife=half_life, userFair=True)) == []
    limits = {"resources": {"gpu": 4, "gpu/h100": "500m"}, "users": {"a@b.c": {"running": 0}}}
    assert problems_of(cases.queue_object(userLimits=limits)) == []
