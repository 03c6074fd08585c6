"""Contributor pages name files and folders that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.links import ROOT

SOURCE = ROOT / "src" / "windlass"
PACKAGES = {folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").is_file()}
FOLDERS = {"tests", "tools", "bench", "deploy", "docs", "examples"}
PAGES = (
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "architecture.md",
    *sorted((ROOT / "docs" / "design").glob("*.md")),
)
_CODE = re.compile(r"`([\w./-]+)`")


def missing(text: str) -> list[str]:
    """Paths of modules, packages and folders in code spans that do not exist."""
    named = {word.rstrip("/") for word in _CODE.findall(text) if "NAME" not in word}
    return sorted(word for word in named if _is_path(word) and not _exists(word))


def _is_path(word: str) -> bool:
    return word.endswith(".py") or (
        "/" in word and word.partition("/")[0] in PACKAGES | FOLDERS | {"src"}
    )


def _exists(word: str) -> bool:
    if "/" not in word:
        return any(SOURCE.rglob(word)) or (ROOT / word).exists()
    return (SOURCE / word).exists() or (ROOT / word).exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_files_that_exist(page: Path) -> None:
    assert missing(page.read_text()) == []


def test_a_path_that_does_not_exist_is_found() -> None:
    text = "`core/cycle/cycle.py`, `core/cycle/nothing.py`, `nothing.py`, `control/nothing`, `a/b`"
    assert missing(text) == ["control/nothing", "core/cycle/nothing.py", "nothing.py"]
