"""Older versions of Kubernetes: each is built, then tested; one that fails is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.harness import build, versions

OTHERS = [version for version in build.TESTED if version != build.KUBERNETES]


def test_each_other_version_is_built_and_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_SOAK", "1")
    done: list[tuple[str, str]] = []

    def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
        assert "WINDLASS_SOAK" not in environment
        done.append((environment["WINDLASS_KUBERNETES"], command[2]))
        return 0

    assert versions.main([], run) == 0
    assert done == [(each, what) for each in OTHERS for what in ("tests.harness.build", "pytest")]


def test_a_version_that_fails_is_named_and_the_next_one_is_tested(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
        return int(environment["WINDLASS_KUBERNETES"] == OTHERS[0])

    assert versions.main([], run) == 1
    printed = capsys.readouterr().out
    assert f"--- Kubernetes {OTHERS[1]}" in printed
    assert printed.endswith(f"failed on Kubernetes {OTHERS[0]}\n")


@pytest.mark.parametrize("suite", versions.SUITES)
def test_the_suites_exist(suite: str) -> None:
    assert (Path(__file__).parents[2] / suite).exists()
