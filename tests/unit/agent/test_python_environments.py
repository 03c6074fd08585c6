"""Environments: what makes them the same, two builders at once, builders that are killed."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from windlass.agent.init import main, python_environments


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of our own with one small package: no network."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tinything-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tinything.py", "word = 'here'\n")
        info = "tinything-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinything\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/entry_points.txt", "[console_scripts]\ntiny=tinything:word.upper\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    return folder


def build(keep: Path, *requirements: str, code: Path | None = None, digest: str = "") -> Path:
    return python_environments.ensure(keep, requirements, sys.executable, code, digest)


def test_an_environment_is_built_once_and_works_at_any_path(tmp_path: Path, wheels: Path) -> None:
    place = build(tmp_path / "keep", "tinything")
    made = (place / "pyvenv.cfg").stat().st_ino
    assert build(tmp_path / "keep", "tinything", "# a remark", "") == place
    assert (place / "pyvenv.cfg").stat().st_ino == made
    elsewhere = tmp_path / "elsewhere"
    place.rename(elsewhere)
    ask = "import tinything, sys; print(tinything.word, sys.prefix)"
    said = subprocess.run(
        [elsewhere / "bin/python", "-c", ask], capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == ["here", str(elsewhere)]
    head = (elsewhere / "bin/tiny").read_text()
    assert str(place) not in head, "scripts find their Python wherever they lie"


def test_other_content_is_another_environment(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("six==1.16\n")

    def key(*lines: str, digest: str = "d1") -> str:
        return python_environments.key(lines, sys.executable, tmp_path, digest)

    keys = [key("six"), key("six", "attrs"), key("-r requirements.txt"), key("-e ."), key("./pkg")]
    assert len(set(keys)) == len(keys)
    assert key("six") == key("six", digest="d2"), "the code has no part in it"
    assert key("-e .") != key("-e .", digest="d2"), "the code is part of it"
    before = key("-r requirements.txt")
    (tmp_path / "requirements.txt").write_text("six==1.17\n")
    assert key("-r requirements.txt") != before
    assert python_environments.key(["six"], "3.12", None, "") != python_environments.key(
        ["six"], "3.13", None, ""
    )


def test_what_the_tool_printed_is_the_error_and_nothing_is_left(
    tmp_path: Path, wheels: Path
) -> None:
    with pytest.raises(python_environments.BuildError, match="no-such-thing"):
        build(tmp_path / "keep", "no-such-thing")
    left = [path.name for path in (tmp_path / "keep").iterdir() if not path.name.endswith(".lock")]
    assert left == []


def test_a_file_that_requirements_name_and_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        python_environments.BuildError, match=r"missing\.txt.*is it in the working folder"
    ):
        build(tmp_path / "keep", "-r missing.txt", code=tmp_path)


def test_files_that_requirements_name_are_read_from_the_code(tmp_path: Path, wheels: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "requirements.txt").write_text("tinything\n")
    place = build(tmp_path / "keep", "-r requirements.txt", code=code)
    assert list(place.glob("lib/*/site-packages/tinything.py"))


def test_many_at_once_build_one(tmp_path: Path, wheels: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        places = pool.starmap(build, [(tmp_path / "keep", "tinything")] * 4)
    assert len(set(places)) == 1
    assert [p for p in (tmp_path / "keep").iterdir() if p.is_dir()] == [places[0]]


def test_what_a_killed_builder_left_is_cleared_away(tmp_path: Path, wheels: Path) -> None:
    place = build(tmp_path / "keep", "tinything")
    shutil.rmtree(place)
    (place.with_name(f"{place.name}.999.new") / "bin").mkdir(parents=True)
    assert build(tmp_path / "keep", "tinything") == place
    assert [p for p in (tmp_path / "keep").iterdir() if p.is_dir()] == [place]


def test_settings_for_pip_hold_for_uv_unless_it_has_its_own(tmp_path: Path) -> None:
    given = {"PIP_INDEX_URL": "https://mirror", "HOME": "/nonexistent", "VIRTUAL_ENV": "/x"}
    found = python_environments.tool_environment(given, tmp_path)
    assert found["UV_DEFAULT_INDEX"] == "https://mirror"
    assert found["UV_CACHE_DIR"] == str(tmp_path / ".uv-cache")
    assert "VIRTUAL_ENV" not in found
    own = python_environments.tool_environment(
        {**given, "UV_DEFAULT_INDEX": "https://own"}, tmp_path
    )
    assert own["UV_DEFAULT_INDEX"] == "https://own"


def order(**parts: object) -> dict[str, object]:
    return {"code": "", "requirements": [], "python": "", "setup": "", **parts}


def test_setup_runs_in_the_environment_and_the_command_enters_it(
    tmp_path: Path, wheels: Path
) -> None:
    main.prepare(
        tmp_path,
        order(requirements=["tinything"], setup="python -c 'import tinything' && touch done"),
    )
    assert (tmp_path / "done").exists()
    enter = ["/bin/sh", "-c", '. "$0"; exec "$@"', str(tmp_path / "run/environment")]
    said = subprocess.run([*enter, "python", "-c", "import tinything as t; print(t.word)"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert said.stdout == "here\n"


def test_programs_of_an_image_can_import_windlass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PYTHONPATH of the image stays, and the package comes after it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "busybox").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    main.prepare(tmp_path, order(tools=True))
    enter = ["/bin/sh", "-c", '. "$0"; exec "$@"', str(tmp_path / "run/environment")]
    code = "import sys, windlass; windlass.report(0.5); print(sys.path[1], windlass.__file__)"
    said = subprocess.run(
        [*enter, sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": "/of-the-image"},
    )  # fmt: skip
    package = tmp_path / "run" / "python" / "windlass" / "__init__.py"
    assert said.stdout == f"/of-the-image {package}\n", said.stderr


def test_a_setup_that_fails_ends_with_a_typed_reason_and_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import json

    told = tmp_path / "last-words"
    script = "seq 1 99; sleep 1000 & echo $! > left; echo no such compiler >&2; exit 3"
    monkeypatch.setenv("WINDLASS_ROOT", str(tmp_path))
    monkeypatch.setenv("WINDLASS_TERMINATION_LOG", str(told))
    monkeypatch.setenv("WINDLASS_PREPARE", json.dumps(order(setup=script)))
    try:
        assert main.main() == 1  # though a process that the script left keeps the output open
    finally:
        os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
    words = json.loads(told.read_text())
    assert words["reason"] == "ImageOrEnvironmentFailed"
    assert "exit code 3" in words["message"]
    assert words["message"].splitlines()[-1] == "no such compiler"
    assert "\n79\n" not in words["message"]
    assert "\n1\n" in capfd.readouterr().out


def test_the_usual_python_is_the_one_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "python3").symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert python_environments._default_python() == str(tmp_path / "python3")
