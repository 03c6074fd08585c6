"""The site of `make docs` builds in strict mode, has search and loads nothing from the network."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_LOADED = re.compile(
    r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(https?:)?//", re.IGNORECASE
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").glob("**/*.md")}
    assert [
        page for page in sorted(pages) if not (site / page.with_suffix(".html")).is_file()
    ] == []


def test_the_search_index_finds_a_term_of_the_glossary(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text())
    assert any("backfill" in entry["text"].lower() for entry in index["docs"])


def test_the_site_loads_nothing_from_the_network(site: Path) -> None:
    loading = [page.name for page in site.glob("**/*.html") if _LOADED.search(page.read_text())]
    assert loading == []


def test_a_pipe_in_a_table_is_shown_without_a_backslash(site: Path) -> None:
    pages = [page for page in site.glob("**/*.html") if "\\|" in page.read_text()]
    assert [page.name for page in pages] == []
