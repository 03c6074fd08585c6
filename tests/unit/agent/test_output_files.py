"""Which files a run's declaration of outputs names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.agent.init import output_files
from windlass.injob.library.windlass import saving


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path in (
        "code/out/a/x.pt",
        "code/out/y.pt",
        "code/log.txt",
        "outputs/saved",
        "token/token",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    return tmp_path


def found(root: Path, *paths: str) -> list[str]:
    return [each.path for each in output_files.find(root, "code", paths)]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("out", ["out/a/x.pt", "out/y.pt"]),
        ("./out/", ["out/a/x.pt", "out/y.pt"]),
        (".", ["log.txt", "out/a/x.pt", "out/y.pt"]),
        ("out/*.pt", ["out/y.pt"]),
        ("out/**/*.pt", ["out/a/x.pt", "out/y.pt"]),
        ("*", ["log.txt", "out/a/x.pt", "out/y.pt"]),
        ("o*", ["out/a/x.pt", "out/y.pt"]),
        ("/windlass/outputs", ["/windlass/outputs/saved"]),
        ("/windlass/out*", ["/windlass/outputs/saved"]),
        ("log.txt", ["log.txt"]),
        ("none", []),
        ("none/*", []),
        ("/windlass/token", []),
        ("/windlass/token/*", []),
        ("../token", []),
        ("../outputs", ["/windlass/outputs/saved"]),
        ("../out*", ["/windlass/outputs/saved"]),
        ("../../x", []),
        ("/windlass/*/token", []),
        ("/windlass/**/saved", ["/windlass/outputs/saved"]),
    ],
)
def test_a_path_names_files(root: Path, path: str, names: list[str]) -> None:
    assert found(root, path) == names


def test_a_file_of_two_paths_is_there_once(root: Path) -> None:
    assert found(root, "out", "out/*.pt", "log.txt") == ["log.txt", "out/a/x.pt", "out/y.pt"]


def test_a_mount_is_named_by_its_own_path(root: Path) -> None:
    mount = root / "mnt"
    mount.mkdir()
    (mount / "f").write_text("f")
    assert found(root, f"{mount}/*") == [f"{mount}/f"]


def test_links_are_recorded_and_not_followed(root: Path) -> None:
    (root / "code/out/link").symlink_to("/etc")
    (root / "code/out/latest").symlink_to("y.pt")
    os.mkfifo(root / "code/out/pipe")
    targets = {each.path: each.target for each in output_files.find(root, "code", ["out"])}
    assert targets == {
        "out/a/x.pt": None, "out/y.pt": None, "out/link": "/etc", "out/latest": "y.pt",
    }  # fmt: skip


def test_what_has_too_many_files_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_files, "MOST_FILES", 2)
    with pytest.raises(output_files.TooManyError, match="pack them"):
        found(root, ".")


def test_an_object_that_is_being_saved_is_no_output_yet(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile: list[str] = []

    class Slow:
        """Collected while it is written."""

        def __reduce__(self) -> tuple[type[int], tuple[()]]:
            meanwhile.extend(found(root, "/windlass/outputs"))
            return int, ()

    monkeypatch.setenv("WINDLASS_OUTPUTS", str(root / "outputs"))
    saving.save(Slow(), "model")
    assert meanwhile == ["/windlass/outputs/saved"]
    after = found(root, "/windlass/outputs")
    assert after == ["/windlass/outputs/model.pickle", "/windlass/outputs/saved"]
