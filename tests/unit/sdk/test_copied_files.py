"""Paths that a run reports and what is written of them: hostile names, links, patterns."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.kinds.values import globs
from windlass.sdk.files import copying, local_folder, places
from windlass.sdk.files.places import Entry, PathError, Place


class Tree:
    """A source of a test: entries as a hostile replica may report them."""

    def __init__(self, *entries: Entry, targets: dict[str, str] | None = None) -> None:
        self.entries = entries
        self.targets = targets or {}
        self.reads: list[tuple[str, int]] = []

    async def list(self, path: str) -> list[Entry]:
        return list(self.entries) if not globs.is_pattern(path) else []

    async def target(self, path: str) -> str:
        return self.targets[path]

    async def read(self, path: str, offset: int, size: int) -> AsyncIterator[bytes]:
        self.reads.append((path, offset))
        yield b"x" * size


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("train:model.pt", Place("train", "", "model.pt")),
        ("run/train:a:b", Place("train", "", "a:b")),
        ("train/worker-1:/data", Place("train", "worker-1", "/data")),
        ("train/2:", Place("train", "2", "")),
        ("./train:model.pt", None),
        ("/tmp/train:x", None),
        ("model.pt", None),
        ("../a:b", None),
    ],
)
def test_a_place_of_a_run_differs_from_a_local_path(text: str, place: Place | None) -> None:
    assert places.parse(text) == place


def test_a_replica_is_named_by_role_and_index() -> None:
    roles = ["driver", "data-worker"]
    assert Place("r", "", "").member(roles) == ("driver", 0)
    assert Place("r", "data-worker-12", "").member(roles) == ("data-worker", 12)
    assert Place("r", "3", "").member(roles) == ("driver", 3)
    with pytest.raises(PathError, match="driver-0, data-worker-0"):
        Place("r", "worker-0", "").member(roles)


def names_in(folder: Path) -> list[str]:
    return [each.name for each in folder.rglob("*")]


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/passwd", "a//b", "./a", "a/.", "a\nb", "a\0b", "x" * 256]
)
async def test_nothing_is_written_outside_of_the_destination(tmp_path: Path, path: str) -> None:
    into = tmp_path / "into"
    source = Tree(Entry("", "folder"), Entry(path, "file", 3))
    with pytest.raises(PathError, match="not a safe name"):
        await copying.download(source, "out", f"{into}/")
    assert names_in(tmp_path) in (["into"], ["into", "out"])


@given(
    st.text(st.sampled_from("ab./*"), max_size=12), st.text(st.sampled_from("ab./"), max_size=12)
)
def test_links_that_are_made_lead_into_the_tree(path: str, target: str) -> None:
    try:
        places.checked(path)
    except PathError:
        return
    if path and local_folder.stays_inside(path, target):
        joined = os.path.normpath(os.path.join("/tree", os.path.dirname(path), target))
        assert joined == "/tree" or joined.startswith("/tree/")


async def test_a_link_through_another_link_cannot_lead_out(tmp_path: Path) -> None:
    source = Tree(
        Entry("", "folder"), Entry("d", "folder"), Entry("d/up", "link"), Entry("evil", "link"),
        targets={"out/d/up": "..", "out/evil": "d/up/../../secret"},
    )  # fmt: skip
    report = await copying.download(source, "out", str(tmp_path / "into"))
    assert report.left_out == ["out/evil"]
    assert os.readlink(tmp_path / "into" / "d" / "up") == ".."


async def test_a_changed_file_is_copied_anew_and_an_unfinished_one_goes_on(tmp_path: Path) -> None:
    old, new = Entry("", "file", 10, 1000), Entry("", "file", 10, 2000)
    (tmp_path / local_folder.part_name("f", old)).write_bytes(b"12345678")
    source = Tree(new)
    await copying.download(source, "f", str(tmp_path / "f"))
    assert source.reads == [("f", 0)], "the part is of another version"
    source = Tree(old)
    await copying.download(source, "f", str(tmp_path / "f"))
    assert source.reads == [("f", 8)]
    assert (tmp_path / "f").read_bytes() == b"12345678xx"
    await copying.download(source, "f", str(tmp_path / "f"))
    assert source.reads == [("f", 8)], "it is complete"


async def test_an_unfinished_copy_that_is_a_link_is_refused(tmp_path: Path) -> None:
    entry = Entry("", "file", 4, 1000)
    victim = tmp_path / "victim"
    victim.write_text("keep")
    (tmp_path / local_folder.part_name("f", entry)).symlink_to(victim)
    with pytest.raises((PathError, OSError)):
        await copying.download(Tree(entry), "f", str(tmp_path / "f"))
    assert victim.read_text() == "keep"


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.pt", "a.pt", True),
        ("*.pt", "a/b.pt", False),
        ("**/*.pt", "a/b.pt", True),
        ("**/*.pt", "b.pt", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("[ab]x", "bx", True),
        ("[!ab]x", "bx", False),
        ("[!ab]x", "/x", False),
        ("a+b", "aab", False),
        ("[", "[", True),
        ("[]x", "[]x", True),
        ("x/**", "x/y/z", True),
    ],
)
def test_patterns(pattern: str, path: str, matches: bool) -> None:
    assert bool(globs.matcher(pattern).fullmatch(path)) is matches


@given(st.text(max_size=30))
def test_every_pattern_is_a_pattern(text: str) -> None:
    globs.matcher(text)


def test_a_name_cannot_command_the_terminal() -> None:
    assert places.shown("\x1b]0;x\x07\udcff\u202ea") == "?]0;x???a"
    assert places.shown("x" * 500).endswith("...")
