"""Finds broken links in the documentation: `python -m tools.links`, called by `make check`.

It checks links between Markdown files, their anchors, and paths such as docs/guide/simulate.md in
the code: users read these in `--help` and in messages. Addresses on the web are not opened.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).parent.parent
CODE = ("src", "tools", "bench", "examples")

_FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|(?:src|href)=\"([^\"]+)\"")
CODE_SPAN = re.compile(r"(`+).+?\1")
_EXTERNAL = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_PATH_IN_CODE = re.compile(r"(?<![\w/.-])docs/[\w/-]+\.md\b")


def main() -> int:
    found = sorted(broken(ROOT))
    for line in found:
        print(line)
    return 1 if found else 0


def broken(root: Path) -> Iterator[str]:
    """One sentence for every broken link below the folder."""
    pages = {page: page.read_text() for page in markdown_files(root)}
    for page, text in pages.items():
        for number, target in links(text):
            if problem := _problem(page, target, pages):
                yield f"{page.relative_to(root)}:{number}: {target}: {problem}"
    yield from _paths_in_code(root)


def markdown_files(root: Path) -> list[Path]:
    """The pages that users and contributors read."""
    return sorted([*root.glob("*.md"), *(root / "docs").glob("**/*.md")])


def links(text: str) -> Iterator[tuple[int, str]]:
    """Line number and target of every link outside code."""
    for number, line in prose(text):
        for match in _LINK.finditer(CODE_SPAN.sub("", line)):
            yield number, match[1] or match[2]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, by the rule of GitHub."""
    found: dict[str, int] = {}
    for _, line in prose(text):
        if match := _HEADING.match(line):
            slug = slug_of(match[1])
            found[slug] = found.get(slug, -1) + 1
    return {
        slug if not i else f"{slug}-{i}" for slug, most in found.items() for i in range(most + 1)
    }


def slug_of(heading: str) -> str:
    """The anchor of one heading: lower case, punctuation dropped, spaces as hyphens."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", plain.lower()))


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines that are neither in a fence nor indented as code, with their numbers."""
    fence, after_blank = "", True
    for number, line in enumerate(text.splitlines(), 1):
        if match := _FENCE.match(line):
            if not fence:
                fence = match[1]
            elif match[1].startswith(fence):
                fence = ""
            continue
        indented = line.startswith("    ") and after_blank
        if not fence and not indented:
            yield number, line
        after_blank = not line.strip() or (indented and bool(line.strip()))


def _problem(page: Path, target: str, pages: dict[Path, str]) -> str:
    """Why the link does not work, or an empty string."""
    if _EXTERNAL.match(target):
        return ""
    path, _, anchor = unquote(target).partition("#")
    if path.startswith("/"):
        return "the link is absolute; write it relative to the page"
    found = (page.parent / path).resolve() if path else page
    if not found.exists():
        return "there is no such file"
    if anchor and found in pages and anchor not in anchors(pages[found]):
        return f"{found.name} has no heading with this anchor"
    return ""


def _paths_in_code(root: Path) -> Iterator[str]:
    """Paths of pages that code, tests and messages name and that do not exist."""
    for source in sorted(file for folder in CODE for file in (root / folder).glob("**/*.py")):
        for number, line in enumerate(source.read_text().splitlines(), 1):
            for match in _PATH_IN_CODE.finditer(line):
                if not (root / match[0]).is_file():
                    yield f"{source.relative_to(root)}:{number}: {match[0]}: there is no such file"


if __name__ == "__main__":
    sys.exit(main())
