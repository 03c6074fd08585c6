"""Hooks of MkDocs for the documentation site (see mkdocs.yml).

The pages are written for GitHub. The hooks cover what MkDocs does differently.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

FOLDERS = ("contributing", "design")
_CODE = re.compile(r"<code>[^<]*</code>")


def on_config(config: Any) -> Any:
    """Appends the section "Contributing", with the architecture page and all pages of FOLDERS.

    Contributor pages come and go with the code, so the navigation is read from the folders.
    """
    docs = Path(config["docs_dir"])
    found = [docs / "architecture.md", *(page for name in FOLDERS for page in _pages(docs / name))]
    pages = [str(page.relative_to(docs)) for page in found if page.is_file()]
    if pages:
        config["nav"] = [*config["nav"], {"Contributing": pages}]
    return config


def on_page_content(html: str, **_: Any) -> str:
    """In a table `a|b` must be written `a\\|b`; GitHub drops the backslash, MkDocs does not."""
    return _CODE.sub(lambda match: match[0].replace("\\|", "|"), html)


def _pages(folder: Path) -> list[Path]:
    """Markdown files of the folder, the index first."""
    return sorted(folder.glob("*.md"), key=lambda page: (page.stem != "index", page.stem))
