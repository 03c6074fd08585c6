"""Tries timing-sensitive tests of the last run once more, alone.

    python -m tests.harness.retry SUITE [options of pytest]      after a run that failed
    python -m tests.harness.retry SUITE --none-needed            after a run that passed

`make test` calls it. It gives up, and so the run stays failed, if anything
but tests failed (a file that cannot be imported, a run that was stopped), if a test failed that is
not timing-sensitive (`outcomes.TIMING_SENSITIVE`), if a test was skipped that must not be, if more
than `MOST` tests failed, or if a test needed a second try in the run before as well: then it is not
the machine that is late.
"""

from __future__ import annotations

import json
import sys

import pytest

from tests.harness import build, outcomes

MOST = 12
"""So many late tests are no accident."""


def main(suite: str, arguments: list[str]) -> int:
    last_time = LastTime(suite)
    if arguments == ["--none-needed"]:
        last_time.write([])
        return 0
    record = json.loads(outcomes.RECORD.read_text())
    problem = refusal(record)
    if problem:
        print(f"Nothing is tried again: {problem}")
        return 1
    failed: list[str] = record["failed"]
    print(f"{len(failed)} timing-sensitive tests failed and are tried once more, alone:")
    for nodeid in failed:
        print(f"  {nodeid}\n    may be late: {outcomes.timing_reason(nodeid)}")
    exit_code = int(pytest.main([*arguments, *failed]))
    again = json.loads(outcomes.RECORD.read_text())
    if exit_code or again["passed"] != len(failed):
        print(f"{again['passed']} of {len(failed)} passed at the second try.")
        return 1
    twice = sorted(set(failed) & set(last_time.read()))
    last_time.write(failed)
    for nodeid in twice:
        print(f"{nodeid} needed a second try in the last run too: mend it.")
    print(f"second try: {len(failed)} of {len(failed)} passed")
    return 1 if twice else 0


def refusal(record: dict[str, object]) -> str:
    """Why the run must stay failed; empty if its failures may be tried again."""
    failed = record["failed"]
    assert isinstance(failed, list)
    steady = [nodeid for nodeid in failed if not outcomes.timing_reason(nodeid)]
    if record["collectionErrors"]:
        return f"files could not be collected: {record['collectionErrors']}"
    if record["forbiddenSkips"]:
        return f"tests were skipped that must run: {record['forbiddenSkips']}"
    if record["exitCode"] != pytest.ExitCode.TESTS_FAILED or not failed:
        return f"pytest ended with exit code {record['exitCode']}"
    if steady:
        return f"these do not depend on time: {steady}"
    if len(failed) > MOST:
        return f"{len(failed)} tests failed, at most {MOST} may be late"
    return ""


class LastTime:
    """Tests of a suite that needed a second try in its last run on this machine."""

    def __init__(self, suite: str) -> None:
        self._file = build.cache_dir() / f"retried-{suite}.json"

    def read(self) -> list[str]:
        try:
            return [str(each) for each in json.loads(self._file.read_text())]
        except (OSError, ValueError):
            return []

    def write(self, failed: list[str]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
