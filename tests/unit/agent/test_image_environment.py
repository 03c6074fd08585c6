"""What runs inside images of users, of which only some Python is known."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from windlass.agent.init import image_environment, python_environments


@pytest.mark.parametrize("module", [python_environments, image_environment])
def test_it_is_read_by_old_pythons_and_needs_nothing_but_their_library(module) -> None:
    tree = ast.parse(Path(module.__file__).read_text(), feature_version=(3, 8))
    ours = {
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("windlass")
        for alias in node.names
    }
    assert ours <= {"windlass.agent.init.python_environments"}


def test_all_that_it_needs_is_copied(tmp_path: Path) -> None:
    (tmp_path / "run" / "bin").mkdir(parents=True)
    image_environment.copy_into(tmp_path, "run/library")
    copied = tmp_path / "run/library/windlass/agent/init"
    assert {each.name for each in copied.iterdir()} == {
        "__init__.py", "python_environments.py", "image_environment.py",
    }  # fmt: skip
    assert (tmp_path / "run/bin/uv").stat().st_mode & 0o100
