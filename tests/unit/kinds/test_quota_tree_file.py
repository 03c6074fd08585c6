"""The tree in a file: read, written, and what is wrong with it said in sentences."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.kinds import quota_tree_file
from windlass.kinds.types import meta, queue


def tree(**specs: dict[str, Any]) -> dict[str, queue.Queue]:
    return {
        name: queue.Queue(metadata=meta.ObjectMeta(name=name), spec=queue.QueueSpec(**spec))
        for name, spec in specs.items()
    }


def test_queues_inside_queues_are_read_parents_first_and_written_back_the_same() -> None:
    document = {
        "queues": {"company": {"weight": 2, "queues": {"a": {}, "b": {"queues": {"c": {}}}}}}
    }
    found = quota_tree_file.flatten(document)
    parents = {each["metadata"]["name"]: each["spec"].get("parent") for each in found}
    assert parents == {"company": None, "a": "company", "b": "company", "c": "b"}
    specs = {each["metadata"]["name"]: each["spec"] for each in found}
    queues = tree(**{name: {"parent": spec.get("parent")} for name, spec in specs.items()})
    assert quota_tree_file.nested(queues, specs) == document


@pytest.mark.parametrize(
    "document",
    [
        {}, {"queues": []}, {"queues": {"a": 3}}, {"queues": {"a": {"parent": "b"}}},
        {"queues": {"a": {"queues": {"a": {}}}}}, {"queues": {"a": {"queues": 1}}},
    ],
)  # fmt: skip
def test_what_is_no_tree_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(quota_tree_file.Malformed):
        quota_tree_file.flatten(document)


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ({"a": {"parent": "gone"}}, "queue a is below gone, which does not exist"),
        (
            {"a": {"parent": "b"}, "b": {"parent": "a"}},
            "queue a is below itself (a below b below a)",
        ),
        ({"a": {"parent": "a"}}, "queue a is below itself (a below a)"),
        ({"a": {"namespaces": ["x"]}, "b": {"namespaces": ["x"]}}, "namespace x belongs to"),
        ({"a": {"guarantee": {"gpu": "4"}, "limit": {"gpu": "2"}}}, "more than its limit"),
        (
            {
                "p": {"guarantee": {"gpu": "4"}},
                "a": {"parent": "p", "guarantee": {"gpu": "3"}},
                "b": {"parent": "p", "guarantee": {"gpu": "2"}},
            },
            "the queues below p (a, b) are guaranteed gpu=5 in total, more than its own gpu=4",
        ),
    ],
)
def test_each_thing_that_is_wrong_is_one_sentence(specs: dict[str, Any], words: str) -> None:
    (told,) = quota_tree_file.problems(tree(**specs))
    assert told.startswith(words) or words in told
    assert ";" in told  # what to do comes behind it


def test_a_sound_tree_has_no_problems() -> None:
    assert quota_tree_file.problems(
        tree(
            p={"guarantee": {"gpu": "8"}},
            a={"parent": "p", "guarantee": {"gpu": "8"}, "limit": {"gpu": "8"}},
            open={},
        )
    ) == []  # fmt: skip


def test_guarantees_beyond_the_capacity_are_reported_with_the_numbers() -> None:
    queues = tree(
        a={"guarantee": {"cpu": "3", "memory": "1Ti"}},
        b={"guarantee": {"cpu": "2"}},
        c={"parent": "a", "guarantee": {"cpu": "1"}},
        d={"parent": "a", "guarantee": {"cpu": "2500m"}},
        e={"parent": "gone", "guarantee": {"gpu": "1"}},
        idle={},
    )
    capacity = {"cpu": "4", "memory": "16Gi"}

    def told(*names: str) -> list[str]:
        sentences = quota_tree_file.overcommitted(queues, capacity, names)
        return [each.partition("; ")[0] for each in sentences]

    cpu = "queues a, b are guaranteed 5 cpu in all, but the cluster has 4 cpu"
    memory = "queue a is guaranteed 1Ti memory in all, but the cluster has 16Gi memory"
    assert told("a", "b") == [cpu, memory]
    assert told("b") == [cpu]
    assert told("c") == [
        "queues c, d are guaranteed 3500m cpu in all, but queue a is guaranteed 3 cpu"
    ]
    assert told("e") == ["queue e is guaranteed 1 gpu in all, but the cluster has 0 gpu"]
    assert told("idle") == []
    assert quota_tree_file.overcommitted(queues, {"cpu": "5"}, ["b"]) == []
