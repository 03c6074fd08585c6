"""The recorder of decisions: what it covers, and that a changed decision is found."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools import decision_inputs, decisions

_SLOW = ("simulated/orders", "simulated/steady-state", "drawn", "steady state")
"""What a unit test has no time for."""


def _recorded(path: Path, *names: str) -> Path:
    decisions.record(path, [each for each in decisions.cases() if each[0] in names])
    return path


def _changed(path: Path, out: Path, change: Callable[[dict[str, Any]], bool]) -> Path:
    """The recording with the first decision that `change` accepts changed by it."""
    lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert any(change(line["decision"]) for line in lines)
    out.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    return out


def test_a_recording_is_repeatable_and_equal_to_itself(tmp_path: Path) -> None:
    names = "simulated/repair", "simulated/defragmentation", "drawn contest/3"
    one = _recorded(tmp_path / "one.gz", *names)
    other = _recorded(tmp_path / "other.gz", *names)
    assert one.read_bytes() == other.read_bytes()
    assert decisions.compare(one, other) == []
    assert decisions.main(["compare", str(one), str(other)]) == 0


def test_another_node_for_one_member_is_found_and_shown(tmp_path: Path) -> None:
    def move(decision: dict[str, Any]) -> bool:
        for placement in decision["placements"]:
            placement["members"][0]["node"] = "elsewhere"
        return bool(decision["placements"])

    before = _recorded(tmp_path / "before.gz", "simulated/elastic", "simulated/nodes")
    after = _changed(before, tmp_path / "after.gz", move)
    found = decisions.compare(before, after)
    assert len(found) == 1
    assert found[0].startswith("simulated/elastic: decision 0 at 0.0 differs")
    assert '+placements: {"members"' in found[0]
    assert '"node": "elsewhere"' in found[0]
    assert decisions.main(["compare", str(before), str(after)]) == 1


def test_another_sentence_of_an_eviction_differs_unless_reasons_are_ignored(tmp_path: Path) -> None:
    def reword(decision: dict[str, Any]) -> bool:
        for eviction in decision["evictions"]:
            eviction["reason"] = "in other words"
        return bool(decision["evictions"])

    before = _recorded(tmp_path / "before.gz", "simulated/reclaim")
    after = _changed(before, tmp_path / "after.gz", reword)
    assert decisions.main(["compare", str(before), str(after)]) == 1
    assert decisions.main(["compare", "--ignore-reasons", str(before), str(after)]) == 0


def test_a_case_that_only_one_recording_has_differs(tmp_path: Path) -> None:
    before = _recorded(tmp_path / "before.gz", "simulated/limits", "simulated/nodes")
    after = _recorded(tmp_path / "after.gz", "simulated/nodes")
    expected = ["simulated/limits: decision 0 is only in the recording before"]
    assert decisions.compare(before, after) == expected
    assert decisions.compare(after, before) == [expected[0].replace("before", "after")]


def test_the_text_inputs_alone_have_every_kind_of_content() -> None:
    found: set[str] = set()
    count = 0
    for name, play in decisions.cases():
        if not name.startswith(_SLOW):
            for _, (_, traits) in play():
                found.update(traits)
                count += 1
    assert decisions.REQUIRED - found == set()
    assert count > 200


def test_names_of_cases_are_unique() -> None:
    names = [name for name, _ in decisions.cases()]
    assert len(set(names)) == len(names)


def test_a_recorded_decision_has_no_message_of_a_verdict() -> None:
    world = {"queues": [{"name": "q"}], "waiting": [{"key": "w", "queue": "q", "roles": [
        {"name": "worker", "min": 1, "max": 1, "requests": {"cpu": 1000}}]}]}  # fmt: skip
    decision, traits = decision_inputs.Core(world, {}).decide(0.0)
    assert traits == ["verdict WaitingForCapacity"]
    assert [each["workload"] for each in decision["verdicts"]] == ["w"]
    assert "message" not in decision["verdicts"][0]
