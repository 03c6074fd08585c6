"""What pods leave outside of their own folders: old environments, scratch of killed frameworks."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path

import pytest

from windlass.agent.init import python_environments
from windlass.agent.pods import garbage_collection
from windlass.kinds.annotations import SCRATCH
from windlass.kinds.types import core

KEY, OTHER = "0" * 24, "1" * 24
DAY = 86400.0


class State:
    def __init__(self, folder: Path) -> None:
        self.teams, self.pods = folder / "teams", folder / "pods"
        self.keep = self.teams / "team" / "environments"
        self.keep.mkdir(parents=True)

    def environment(self, name: str, days: float) -> Path:
        place = self.keep / name
        (place / "bin").mkdir(parents=True)
        self.age(place, days)
        return place

    def pod(self, namespace: str, days: float, **record: str) -> Path:
        folder = self.pods / f"pod-{len(list(self.pods.glob('*')))}"
        folder.mkdir(parents=True)
        told = folder / "pod.json"
        told.write_text(json.dumps({"namespace": namespace, "name": "p", "user": None, **record}))
        self.age(told, days)
        return folder

    def age(self, path: Path, days: float) -> None:
        at = time.time() - days * DAY
        os.utime(path, (at, at))

    def sweep(self) -> None:
        garbage_collection.environments(self.teams, self.pods)


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path)


def test_environments_that_are_unused_for_a_month_are_deleted(state: State) -> None:
    old, used = state.environment(KEY, 31), state.environment(OTHER, 29)
    left, cache = state.environment(f"{KEY}.77.new", 31), state.environment(".uv-cache", 99)
    state.pod("team", 3)
    state.pod("elsewhere", 99)
    state.sweep()
    assert not old.exists()
    assert not left.exists()
    assert used.exists()
    assert cache.exists()
    assert sorted(path.name for path in state.keep.iterdir()) == [".uv-cache", OTHER]


def test_what_a_pod_may_use_since_then_stays(state: State) -> None:
    old = state.environment(KEY, 40)
    state.pod("team", 41)
    state.sweep()
    assert old.exists()


def test_links_are_not_followed(state: State, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / KEY).mkdir(parents=True)
    state.age(outside / KEY, 99)
    (state.keep / OTHER).symlink_to(outside)
    state.sweep()
    state.keep.rename(tmp_path / "aside")
    state.keep.symlink_to(outside)
    state.sweep()
    assert (outside / KEY).is_dir()


def test_one_that_is_wanted_in_this_very_moment_stays(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, rename = state.environment(KEY, 31), os.rename

    def late(*names: str, **handles: int) -> None:
        if names[0] == KEY:
            assert python_environments._use(old)
        rename(*names, **handles)

    monkeypatch.setattr(os, "rename", late)
    state.sweep()
    assert old.is_dir()
    assert not python_environments._use(old.with_name(OTHER))


@pytest.fixture
def scratch() -> Path:
    path = Path("/tmp") / f"wl-{uuid.uuid4().hex[:8]}-0"
    (path / "session").mkdir(parents=True)
    return path


def test_scratch_goes_with_the_last_of_its_pods(state: State, scratch: Path) -> None:
    one, two = (state.pod("team", 0, scratch=str(scratch)) for _ in range(2))
    garbage_collection.scratch(one)
    assert scratch.exists()
    (two / "pod.json").unlink()
    garbage_collection.scratch(one)
    assert not scratch.exists()


def test_only_what_frameworks_call_scratch_is_removed(state: State, tmp_path: Path) -> None:
    link = Path("/tmp") / f"wl-{uuid.uuid4().hex[:8]}-0"
    (tmp_path / "mine").mkdir()
    link.symlink_to(tmp_path)
    for path in (str(tmp_path / "mine"), str(link), f"{link}/../{tmp_path.name}"):
        garbage_collection.scratch(state.pod("team", 0, scratch=path))
    link.unlink()
    assert (tmp_path / "mine").exists()


async def test_scratch_of_a_pod_that_was_killed_is_gone_with_it(node, scratch: Path) -> None:
    await node.create("exit 0", annotations={SCRATCH: str(scratch)})
    pod = await node.phase("Succeeded")
    await node.store.delete(core.Pod, "p", "team", grace_seconds=0)
    await node.gone(node.folder / "pods" / pod.uid)
    await node.gone(scratch)
