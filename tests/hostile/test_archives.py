"""Archives of code that want to leave their folder, or to be more than files: a row each.

Jobs on both engines unpack their code with the same function, inside their own pod."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from windlass.agent.init import main

Add = Callable[[tarfile.TarFile], None]


def _file(name: str, content: bytes = b"x") -> Add:
    def add(tar: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))

    return add


def _special(name: str, kind: bytes, link: str = "") -> Add:
    def add(tar: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        member.devmajor, member.devminor = 8, 0
        tar.addfile(member)

    return add


REFUSED: dict[str, list[Add]] = {
    "an absolute path": [_file("/etc/hostile")],
    "a path above": [_file("../outside/hostile")],
    "a path above after one below": [_file("a/../../outside/hostile")],
    "a link to the root": [_special("link", tarfile.SYMTYPE, "/")],
    "a link to the folder above": [_special("link", tarfile.SYMTYPE, "..")],
    "a link to a file outside": [_special("link", tarfile.SYMTYPE, "../outside/kept")],
    "a file through a link": [_special("link", tarfile.SYMTYPE, "../outside"),
                              _file("link/hostile")],
    "a file through two links": [_special("a", tarfile.SYMTYPE, "."),
                                 _special("b", tarfile.SYMTYPE, "a/../../outside"),
                                 _file("b/hostile")],
    "a hard link to a file outside": [_special("link", tarfile.LNKTYPE, "../outside/kept")],
    "a hard link to a system file": [_special("link", tarfile.LNKTYPE, "/etc/passwd")],
    "a block device": [_special("disk", tarfile.BLKTYPE)],
    "a character device": [_special("memory", tarfile.CHRTYPE)],
    "a pipe": [_special("pipe", tarfile.FIFOTYPE)],
    "a contiguous file of old systems": [_special("old", b"7"), _special("disk", tarfile.BLKTYPE)],
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_an_archive_does_not_leave_its_folder(tmp_path: Path, what: str) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "code"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    archive = tmp_path / "code.tar"
    with tarfile.open(archive, "w") as tar:
        for add in REFUSED[what]:
            add(tar)
    with pytest.raises(main.PrepareError, match="cannot be unpacked"):
        main.unpack(archive, folder)
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"kept": "kept"}
    assert not Path("/etc/hostile").exists()


def test_files_get_no_mode_that_gives_rights(tmp_path: Path) -> None:
    archive, folder = tmp_path / "code.tar", tmp_path / "code"
    with tarfile.open(archive, "w") as tar:
        member = tarfile.TarInfo("tool")
        member.mode, member.uid, member.gid = 0o6777, 0, 0
        tar.addfile(member, io.BytesIO())
    main.unpack(archive, folder)
    assert (folder / "tool").stat().st_mode & 0o7022 == 0
