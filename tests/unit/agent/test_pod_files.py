"""The agent reads files of a pod for its user, who may put any link anywhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from windlass.agent.pods import pod_files
from windlass.agent.pods.pod_files import NotReadable, PodFiles

SOMEBODY = 40001


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    folder = tmp_path / "pods" / "uid"
    for name in ("root/work", "root/run", "volumes/code/sub", "volumes/token"):
        (folder / name).mkdir(parents=True)
    (folder / "pod.json").write_text(json.dumps({"namespace": "a", "name": "b", "user": None}))
    (folder / "volumes/code/sub/f").write_text("content")
    (folder / "volumes/token/token").write_text("secret")
    return folder


def content(files: PodFiles, path: str) -> bytes:
    handle = files.open(path)
    try:
        return os.read(handle, 100)
    finally:
        os.close(handle)


@pytest.mark.parametrize("path", ["sub/f", "./sub//f", "/windlass/code/sub/f"])
def test_a_file_is_found_by_its_names(pod: Path, path: str) -> None:
    assert content(PodFiles(pod), path) == b"content"
    (found,) = PodFiles(pod).entries(path)
    assert (found["path"], found["kind"], found["size"]) == ("", "file", 7)


def test_the_real_path_of_the_root_works_too(pod: Path) -> None:
    assert content(PodFiles(pod), f"{pod}/root/code/sub/f") == b"content"
    assert [each["path"] for each in PodFiles(pod).entries("")] == ["", "sub", "sub/f"]


def test_without_code_paths_begin_in_the_work_folder(pod: Path) -> None:
    (pod / "volumes/code/sub/f").unlink()
    (pod / "volumes/code/sub").rmdir()
    (pod / "volumes/code").rmdir()
    (pod / "root/work/out").write_text("x")
    assert content(PodFiles(pod), "out") == b"x"


@pytest.mark.parametrize(
    "path", ["/windlass/token/token", "/windlass/token", "../token/token", "/etc/passwd",
             "/windlass/../pod.json", "sub/../../token/token", "sub\0f"],
)  # fmt: skip
def test_what_is_not_the_jobs_is_not_read(pod: Path, path: str) -> None:
    for read in (PodFiles(pod).entries, PodFiles(pod).open):
        with pytest.raises(NotReadable):
            read(path)


def test_links_are_shown_and_not_followed(pod: Path) -> None:
    (pod / "volumes/code/out").symlink_to("/etc")
    (pod / "volumes/code/file").symlink_to("/etc/passwd")
    (pod / "root/token").symlink_to(pod / "volumes/token")
    files = PodFiles(pod)
    links = [each for each in files.entries("") if each["kind"] == "link"]
    targets = {each["path"]: each["target"] for each in links}
    assert targets == {"out": "/etc", "file": "/etc/passwd"}
    for path in ("out/passwd", "file"):
        with pytest.raises(NotReadable):
            files.open(path)
    assert files.entries("out/passwd") == []
    # The folders of the pod's root are the user's: one may become a link.
    (pod / "root/run").rmdir()
    (pod / "root/run").symlink_to("/etc")
    with pytest.raises(NotReadable):
        files.open("/windlass/run/passwd")


def test_pipes_and_files_of_others_are_not_read(pod: Path) -> None:
    os.mkfifo(pod / "volumes/code/pipe")
    with pytest.raises(NotReadable, match="no file"):
        PodFiles(pod).open("pipe")
    if os.geteuid() != 0:
        pytest.skip("only root can make files of others")
    (pod / "pod.json").write_text(json.dumps({"namespace": "a", "name": "b", "user": SOMEBODY}))
    os.link(pod / "pod.json", pod / "volumes/code/hard")
    with pytest.raises(NotReadable, match="no file"):
        PodFiles(pod).open("hard")
    os.chown(pod / "volumes/code/sub/f", SOMEBODY, SOMEBODY)
    assert content(PodFiles(pod), "sub/f") == b"content"


def test_a_folder_of_too_many_files_is_refused_before_all_names_are_read(
    pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_files, "MOST_ENTRIES", 10)
    monkeypatch.setattr(os, "listdir", None)
    for number in range(5):
        (pod / f"volumes/code/{number}").touch()
    assert len(PodFiles(pod).entries("")) == 8
    for number in range(11):
        (pod / f"volumes/code/sub/{number}").touch()
    with pytest.raises(NotReadable, match="more than 10 files"):
        PodFiles(pod).entries("")


def test_a_link_that_disappears_meanwhile_hides_nothing_else(
    pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pod / "volumes/code/link").symlink_to("x")

    def gone(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "readlink", gone)
    assert [each["path"] for each in PodFiles(pod).entries("")] == ["", "sub", "sub/f"]


def test_a_tree_without_end_is_refused(pod: Path) -> None:
    handle = os.open(pod / "volumes/code", os.O_RDONLY)
    for _ in range(120):
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    with pytest.raises(NotReadable, match="deep"):
        PodFiles(pod).entries("")
