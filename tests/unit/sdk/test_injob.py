"""The package `windlass` inside of jobs: any Python, no packages, and an installed one wins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import windlass
from windlass import injob
from windlass.injob.library import windlass as inside


def python(code: str, *path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code without site-packages: nothing but the standard library and `path`."""
    return subprocess.run(
        [sys.executable, "-S", "-c", code], text=True, capture_output=True, check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, path))}
        | environment,
    )  # fmt: skip


def test_report_and_context_need_no_environment(tmp_path: Path) -> None:
    told = tmp_path / "progress.json"
    code = (
        "import windlass; windlass.report(0.5, loss=1.5); me = windlass.context();"
        "print(me.run, me.rank, me.size, list(windlass.progress([1])), windlass.__version__)"
    )
    done = python(
        code, injob.LIBRARY, WINDLASS_RUN="train", WINDLASS_RANK="1", WINDLASS_SIZE="2",
        WINDLASS_PROGRESS=str(told),
    )  # fmt: skip
    assert done.stdout == f"train 1 2 [1] {windlass.__version__}\n", done.stderr
    assert json.loads(told.read_text())["metrics"] == {"loss": 1.5}


def test_the_version_is_that_of_the_server() -> None:
    assert inside.__version__ == windlass.__version__


def test_what_needs_the_whole_package_says_which_to_install() -> None:
    done = python("import windlass; windlass.run('true')", injob.LIBRARY)
    assert "add windlass-platform to the requirements" in done.stderr


def test_an_installed_windlass_wins_whatever_the_order(tmp_path: Path) -> None:
    (tmp_path / "windlass").mkdir()
    (tmp_path / "windlass" / "__init__.py").write_text("from windlass.part import whole\n")
    (tmp_path / "windlass" / "part.py").write_text("whole = 'whole'\n")
    copy = tmp_path / "copy"
    injob.copy_to(copy)
    done = python("import windlass; print(windlass.whole)", injob.LIBRARY, copy, tmp_path)
    assert done.stdout == "whole\n", done.stderr


def test_a_copy_of_the_library_beside_it_is_no_installed_windlass(tmp_path: Path) -> None:
    injob.copy_to(tmp_path)
    done = python("import windlass; windlass.report(1.0); print('ok')", injob.LIBRARY, tmp_path)
    assert done.stdout == "ok\n", done.stderr


def test_the_users_own_folders_come_first() -> None:
    assert injob.python_path("", "/library") == "/library"
    assert injob.python_path("/mine:/more", "/library") == "/mine:/more:/library"
