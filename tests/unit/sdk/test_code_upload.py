"""What of a folder goes along, that the same content is the same archive, and how it is sent."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from windlass.agent.init import main
from windlass.sdk.transfer import code_upload
from windlass.store import errors


def make(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def names(folder: Path, **limits: int) -> list[str]:
    return [entry.path for entry in code_upload.plan(folder, **limits).files]


def digest(folder: Path) -> str:
    with code_upload.pack(code_upload.plan(folder)) as packed:
        return packed.digest


def test_ignore_files_are_read_as_git_reads_them(tmp_path: Path) -> None:
    make(
        tmp_path,
        _DOT_gitignore="*.log\ndata/\n/only_here\n",
        _DOT_windlassignore="big.bin\n!keep.log\n",
        **{"train.py": "x", "a.log": "x", "keep.log": "x", "big.bin": "x", "only_here": "x"},
        data__x="1",
        sub___DOT_gitignore="!sub.log\nlocal\n",
        **{"sub__sub.log": "x", "sub__only_here": "x", "sub__local": "x", "_DOT_git__HEAD": "ref"},
    )
    assert names(tmp_path) == [
        ".gitignore", ".windlassignore", "keep.log", "sub/", "sub/.gitignore", "sub/only_here",
        "sub/sub.log", "train.py",
    ]  # fmt: skip
    left = {entry.path for entry in code_upload.plan(tmp_path).left_out}
    assert left == {".git/", "a.log", "big.bin", "data/", "only_here", "sub/local"}


def test_it_says_how_much_goes_along_and_what_does_not(tmp_path: Path) -> None:
    make(tmp_path, _DOT_gitignore="data/", data__big="x" * 5000, **{"a.py": "print()"})
    said = code_upload.plan(tmp_path).summary()
    assert said == "2 files, 12 B; left out: data/ (4.9 KiB)"


def test_the_same_content_is_the_same_archive_whenever_and_wherever(tmp_path: Path) -> None:
    one = make(tmp_path / "one", **{"b.py": "2", "a.py": "1"}, sub__c="3")
    two = make(tmp_path / "two", sub__c="3", **{"a.py": "1", "b.py": "2"})
    os.utime(two / "a.py", (1, 1))
    (two / "b.py").chmod(0o600)
    assert digest(one) == digest(two)
    (two / "b.py").chmod(0o700)
    assert digest(one) != digest(two), "whether it can be run is content"


@pytest.mark.parametrize("limits", [{"most_bytes": 1000}, {"most_files": 3}])
def test_surprises_are_refused_with_the_largest_named(
    tmp_path: Path, limits: dict[str, int]
) -> None:
    make(tmp_path, **{f"f{n}": "x" * n for n in range(100, 115)})
    with pytest.raises(code_upload.WorkdirError) as refused:
        code_upload.plan(tmp_path, **limits)
    said = str(refused.value)
    assert said.count("\n  ") == code_upload.LISTED
    assert said.index("f114") < said.index("f113")
    assert ".windlassignore" in said


def test_links_inside_go_along_and_links_out_of_the_folder_do_not(tmp_path: Path) -> None:
    folder = make(tmp_path / "in", sub__a="1")
    (folder / "inner").symlink_to("sub/a")
    (folder / "outer").symlink_to("../secret")
    (folder / "absolute").symlink_to("/etc/passwd")
    planned = code_upload.plan(folder)
    assert [entry.path for entry in planned.files] == ["inner", "sub/", "sub/a"]
    assert {e.path for e in planned.left_out} == {"outer -> ../secret", "absolute -> /etc/passwd"}


def test_what_is_packed_is_unpacked(tmp_path: Path) -> None:
    folder = make(tmp_path / "in", **{"run.sh": "#!/bin/sh"}, sub__a="1")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("sub/a")
    (folder / "empty").mkdir()
    archive, out = tmp_path / "archive", tmp_path / "out"
    with code_upload.pack(code_upload.plan(folder)) as packed:
        archive.write_bytes(packed.file.read())
    make(out, left="from before")
    main.unpack(archive, out)
    assert sorted(path.name for path in out.iterdir()) == ["empty", "link", "run.sh", "sub"]
    assert (out / "link").read_text() == "1"
    assert os.access(out / "run.sh", os.X_OK)


@pytest.mark.parametrize("kind", ["up", "absolute", "link", "hard", "device"])
def test_an_archive_that_leads_out_of_the_folder_is_refused(tmp_path: Path, kind: str) -> None:
    archive = tmp_path / "archive"
    info = tarfile.TarInfo("../evil" if kind == "up" else "/evil" if kind == "absolute" else "evil")
    if kind in ("link", "hard"):
        info.type = tarfile.SYMTYPE if kind == "link" else tarfile.LNKTYPE
        info.linkname = "../../etc/passwd"
    elif kind == "device":
        info.type = tarfile.CHRTYPE
    with tarfile.open(archive, "w") as tar:
        tar.addfile(info)
    out = tmp_path / "out"
    with pytest.raises(main.PrepareError):
        main.unpack(archive, out)
    assert not (tmp_path / "evil").exists()
    assert not Path("/evil").exists()


def test_an_archive_cannot_write_through_its_own_links(tmp_path: Path) -> None:
    archive, out = tmp_path / "archive", tmp_path / "out"
    down, up = tarfile.TarInfo("a/b"), tarfile.TarInfo("a/b/up")
    down.type = tarfile.DIRTYPE
    up.type, up.linkname = tarfile.SYMTYPE, "../.."
    inner, evil = tarfile.TarInfo("l"), tarfile.TarInfo("l/evil")
    inner.type, inner.linkname = tarfile.SYMTYPE, "a/b/up/.."
    with tarfile.open(archive, "w") as tar:
        for each in (down, up, inner, evil):
            tar.addfile(each)
    with pytest.raises(main.PrepareError, match="leads out"):
        main.unpack(archive, out)
    assert not (tmp_path / "evil").exists()


class FakeServer:
    """Keeps pieces; fails on command."""

    def __init__(self, *, have: bytes = b"", failures: int = 0) -> None:
        self.have = have
        self.whole = False
        self.failures = failures
        self.pieces = 0

    async def raw(
        self, method: str, path: str, *, body: bytes | None = None,
        content_type: str = "application/json", headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:  # fmt: skip
        if method == "HEAD":
            return 200 if self.whole else 404, {"Upload-Offset": str(len(self.have))}, b""
        assert headers is not None
        assert body is not None
        if int(headers["Upload-Offset"]) != len(self.have):
            return 409, {}, b"{}"
        self.pieces += 1
        if self.failures:
            self.failures -= 1
            self.have += body[: len(body) // 2]
            raise errors.Unavailable("away", retry_after=0.001)
        self.have += body
        self.whole = len(self.have) == int(headers["Upload-Length"])
        return 204, {"Upload-Offset": str(len(self.have))}, b""


async def test_only_what_the_server_has_not_got_is_sent(tmp_path: Path) -> None:
    make(tmp_path, **{"a.py": "1"})
    server = FakeServer()
    first = await code_upload.send(server, "team", tmp_path)
    assert await code_upload.send(server, "team", tmp_path) == first
    assert server.pieces == 1


async def test_packing_ends_when_no_caller_waits_for_it_any_more(tmp_path: Path) -> None:
    """Ctrl-C: a thread that packs on would keep the program from ending."""
    with (tmp_path / "endless").open("wb") as file:
        file.truncate(1 << 40)
    planned = asyncio.Event()
    sending = asyncio.create_task(
        code_upload.send(
            FakeServer(), "team", tmp_path, most_bytes=1 << 41, on_plan=lambda _: planned.set()
        )
    )
    await planned.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await asyncio.get_running_loop().shutdown_default_executor()


def test_a_cancelled_plan_reads_no_files(tmp_path: Path) -> None:
    with pytest.raises(code_upload.WorkdirError, match="cancelled"):
        code_upload.plan(make(tmp_path, a="1"), stopped=lambda: True)


def test_a_whole_disk_is_refused_without_looking_at_all_of_it(tmp_path: Path) -> None:
    make(tmp_path, **{f"d{n}__f": "x" for n in range(50)})
    looks: list[int] = []
    with pytest.raises(code_upload.WorkdirError, match="28 files and more"):
        code_upload.plan(tmp_path, most_files=9, stopped=lambda: bool(looks.append(1)))
    assert len(looks) < 20


async def test_an_upload_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_upload, "PIECE", 64)
    make(tmp_path, **{f"f{n}": os.urandom(50).hex() for n in range(10)})
    seen: list[int] = []
    with code_upload.pack(code_upload.plan(tmp_path)) as packed:
        content = packed.file.read()
        server = FakeServer(have=content[:100], failures=3)
        assert await code_upload.upload(server, "team", packed, lambda done, _: seen.append(done))
    assert server.have == content
    assert seen[0] == 100
    assert seen == sorted(seen)
    assert seen[-1] == len(content)


async def test_a_refusal_is_passed_on(tmp_path: Path) -> None:
    class Full(FakeServer):
        async def raw(
            self, method: str, path: str, **options: object
        ) -> tuple[int, Mapping[str, str], bytes]:
            if method == "HEAD":
                return 404, {"Upload-Offset": "0"}, b""
            return 507, {}, b'{"message": "the disk of the server is full"}'

    make(tmp_path, a="1")
    with pytest.raises(errors.ApiError, match="disk of the server is full"):
        await code_upload.send(Full(), "team", tmp_path)


def test_what_is_no_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(code_upload.WorkdirError, match="is not a folder"):
        code_upload.plan(tmp_path / "nowhere")


@pytest.mark.parametrize(("limit", "most"), [("MOST_ENTRIES", 2), ("MOST_BYTES", 100)])
def test_an_archive_that_unpacks_to_very_much_is_refused_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    archive, out = tmp_path / "code.tar.gz", tmp_path / "out"
    with tarfile.open(archive, "w:gz") as tar:
        for name in ("a", "b", "c"):
            member = tarfile.TarInfo(name)
            member.size = 50
            tar.addfile(member, io.BytesIO(b"x" * 50))
    monkeypatch.setattr(main, limit, most)
    with pytest.raises(main.PrepareError, match="it has more than"):
        main.unpack(archive, out)
    assert sorted(each.name for each in out.iterdir()) == ["a", "b"]
