"""Outputs as a whole: which folder a file is placed into."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from windlass.kinds import codec
from windlass.kinds.types import run
from windlass.sdk.files import saved
from windlass.sdk.files.collected import OutputFile
from windlass.sdk.files.places import PathError


class Counted(OutputFile):
    """Counts comparisons: fifty thousand files must not be compared with each other."""

    compared = 0

    def __eq__(self, other):
        Counted.compared += 1
        return self is other

    __hash__ = None


def a_file(path: str) -> OutputFile:
    return Counted("worker-0", path, 1, "sha256:" + "0" * 64, 0, 0o644)


def test_each_file_has_one_folder():
    paths = ["model.pt", "out/a", "/windlass/outputs/x", "/windlass/outputs/d/y", "/data/z"]
    groups = saved._by_base([a_file(path) for path in paths])
    assert {base: [each.path for each in files] for base, files in groups.items()} == {
        "": ["model.pt", "out/a"],
        "/windlass/outputs": ["/windlass/outputs/x", "/windlass/outputs/d/y"],
        "/": ["/data/z"],
    }
    assert Counted.compared == 0


CONTENT = b"weights"
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class Server:
    """Lists the files of one replica at a time."""

    async def raw(self, _method, _path, query=()):
        ((name, replica),) = query
        assert name == "replica"
        file = {"path": f"out/{replica}", "digest": DIGEST, "size": len(CONTENT), "modified": 5}
        item = {"replica": replica, "files": [file]}
        return 200, {}, json.dumps({"items": [item]}).encode()

    async def text(self, path):
        assert path.endswith(f"/jobs/outputs/blobs/{DIGEST}")
        yield CONTENT


def a_run(*replicas: str) -> run.Run:
    kept = {
        each: {"attempt": 0, "moment": "end", "at": "2026-11-01T10:00:00Z", "files": 1}
        for each in replicas
    }
    return codec.from_dict(run.Run, {
        "metadata": {"name": "jobs", "namespace": "a"},
        "spec": {"roles": [{"name": "worker", "command": ["true"]}]},
        "status": {"outputs": kept},
    })  # fmt: skip


async def test_the_files_of_each_replica_are_listed_and_copied_apart(tmp_path: Path):
    report = await saved.download(
        Server(), a_run("worker-0", "worker-1"), str(tmp_path), lambda *_: None
    )
    assert report.files == 2
    for replica in ("worker-0", "worker-1"):
        assert (tmp_path / replica / "out" / replica).read_bytes() == CONTENT
    await saved.download(Server(), a_run("worker-0"), str(tmp_path / "one"), lambda *_: None)
    assert (tmp_path / "one/out/worker-0").read_bytes() == CONTENT
    with pytest.raises(PathError, match="has no outputs"):
        await saved.download(Server(), a_run(), str(tmp_path), lambda *_: None)
