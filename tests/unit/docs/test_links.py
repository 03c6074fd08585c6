"""`tools.links` finds links that do not work, and only those."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import links


def page(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def found(root: Path) -> list[str]:
    return list(links.broken(root))


def test_the_documentation_has_no_broken_link() -> None:
    assert found(links.ROOT) == []


def test_links_that_work_are_not_reported(tmp_path: Path) -> None:
    page(
        tmp_path, "README.md", "[a](docs/a.md) [b](docs/a.md#two-words) [c](https://example.org/x)"
    )
    page(tmp_path, "docs/a.md", "# A\n\n## Two words\n\n[up](../README.md) [here](#a)\n")
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("docs/missing.md", "there is no such file"),
        ("docs/a.md#three", "a.md has no heading with this anchor"),
        ("#nowhere", "README.md has no heading with this anchor"),
        ("/docs/a.md", "the link is absolute; write it relative to the page"),
    ],
)
def test_a_broken_link_is_reported_with_its_line(tmp_path: Path, target: str, problem: str) -> None:
    page(tmp_path, "README.md", f"# Home\n\nSee [this]({target}).\n")
    page(tmp_path, "docs/a.md", "# A\n")
    assert found(tmp_path) == [f"README.md:3: {target}: {problem}"]


@pytest.mark.parametrize(
    "text",
    [
        "```\n[x](missing.md)\n```\n",
        "text\n\n    [x](missing.md)\n\ntext\n",
        "`[x](missing.md)`\n",
    ],
)
def test_code_has_no_links(tmp_path: Path, text: str) -> None:
    page(tmp_path, "README.md", text)
    assert found(tmp_path) == []


def test_a_heading_in_code_is_no_anchor(tmp_path: Path) -> None:
    page(tmp_path, "README.md", "[x](#comment)\n\n```sh\n# comment\n```\n")
    assert len(found(tmp_path)) == 1


def test_equal_headings_have_numbered_anchors() -> None:
    assert links.anchors("# A\n\n## B\n\n## B\n") == {"a", "b", "b-1"}


@pytest.mark.parametrize(
    ("heading", "slug"),
    [
        ("What it costs", "what-it-costs"),
        ("`windlass why`, explained", "windlass-why-explained"),
        ("Slurm / Arena", "slurm--arena"),
        ("[Run](run.md) fields", "run-fields"),
    ],
)
def test_anchors_are_those_of_github(heading: str, slug: str) -> None:
    assert links.slug_of(heading) == slug


def test_a_page_that_a_message_names_must_exist(tmp_path: Path) -> None:
    page(tmp_path, "src/a.py", 'HELP = "see docs/guide/a.md and docs/guide/b.md"\n')
    page(tmp_path, "docs/guide/a.md", "# A\n")
    assert found(tmp_path) == ["src/a.py:1: docs/guide/b.md: there is no such file"]
