"""Every command: found, helped, and quick to say so."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

import windlass
from tests.unit.cli.invoking import invoke
from windlass.cli import main
from windlass.cli.lib import exit_codes

COMMANDS = list(main.root.entries)


def leaves() -> list[str]:
    """Every command, those below groups by both words."""
    found = []
    for name in COMMANDS:
        command = main.root.get_command(click.Context(main.root), name)
        below = command.commands if isinstance(command, click.Group) else {}
        found += [f"{name} {word}" for word in below] if below else [name]
    return found


DOCS = Path(__file__).resolve().parents[3] / "docs"
HEAVY = {"msgspec", "aiohttp", "yaml", "rich", "asyncio", "numpy", "sqlite3", "ssl"}


@pytest.mark.parametrize("arguments", [["--help"], ["version"], ["version", "--json"], ["gte"]])
def test_light_commands_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from windlass.cli import main; "
        f"main.invoke({arguments!r}); print('LOADED', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert {"click", "windlass.cli.main"} <= loaded
    assert not HEAVY & loaded


def test_ctrl_c_while_modules_are_loaded_is_no_traceback(tmp_path: Path) -> None:
    slow = "import pathlib, time\npathlib.Path(__file__).with_name('up').touch()\ntime.sleep(60)\n"
    (tmp_path / "click.py").write_text(slow)
    process = subprocess.Popen(
        [sys.executable, "-m", "windlass", "--help"], stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    while not (tmp_path / "up").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.communicate()[1] == ""
    assert process.returncode == -signal.SIGINT


@pytest.mark.parametrize("name", leaves())
def test_each_command_has_help_examples_and_both_output_flags(name: str) -> None:
    result = invoke(*name.split(), "--help")
    assert result.code == exit_codes.OK
    assert f"windlass {name}" in result.out
    assert "Examples:" in result.out
    assert "--json" in result.out
    assert "--quiet" in result.out


def test_the_overview_lists_every_command_with_its_own_words() -> None:
    result = invoke("--help")
    for name, entry in main.root.entries.items():
        assert re.search(rf"^  {name} +{re.escape(entry.help)}$", result.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "guess"),
    [
        (["gte", "runs"], "'get'"),
        (["aply"], "'apply'"),
        (["get", "runs", "--selectr", "a=b"], "'--selector'"),
        (["get", "rnus"], "'runs'"),
        (["explain", "run.spec.rols"], "'roles'"),
        (["cron", "lst"], "'list'"),
        (["run", "--topolgy", "x", "--", "x"], "'--topology'"),
    ],
)
def test_a_mistyped_word_gets_the_nearest_valid_one(arguments: list[str], guess: str) -> None:
    result = invoke(*arguments)
    assert result.code in (exit_codes.USAGE, exit_codes.NOT_FOUND)
    assert f"Did you mean {guess}?" in result.err
    assert result.out == ""
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    "arguments", [["get"], ["apply"], ["get", "runs", "-o", "xml"], ["run"], ["delete", "run"]]
)
def test_an_incomplete_command_line_is_one_sentence_and_a_remedy(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.code == exit_codes.USAGE
    first, *rest = result.err.splitlines()
    assert first.startswith("error: ")
    assert rest
    assert "Traceback" not in result.err


def test_errors_are_json_for_programs() -> None:
    result = invoke("get", "rnus", "--json")
    assert result.code == exit_codes.NOT_FOUND
    assert result.error["code"] == exit_codes.NOT_FOUND
    assert "rnus" in result.error["message"]


def test_a_job_may_have_flags_like_ours() -> None:
    result = invoke("run", "--cpus", "x", "--", "echo", "--json")
    assert result.code == exit_codes.RUN_NOT_STARTED
    assert result.err.startswith("error: ")


def test_version_speaks_to_people_programs_and_scripts() -> None:
    assert windlass.__version__ in invoke("version").out
    assert invoke("--version").out == f"windlass {windlass.__version__}\n"
    assert invoke("version", "--json").json["version"] == windlass.__version__
    assert invoke("version", "-q").out == f"{windlass.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell: str) -> None:
    result = invoke("completion", shell)
    assert result.code == exit_codes.OK
    assert "_WINDLASS_COMPLETE" in result.out


def test_completion_offers_commands_and_kinds() -> None:
    def complete(words: str, cword: int) -> list[str]:
        env = {"_WINDLASS_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(cword)}
        return invoke(env=env).out.splitlines()

    assert "plain,get" in complete("windlass g", 1)
    assert "plain,queues" in complete("windlass get que", 2)


def test_an_unexpected_error_is_a_sentence_unless_debugging(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a stone in the gears")

    monkeypatch.setattr("windlass.cli.lib.kind_names.kind_of", broken)
    result = invoke("get", "runs")
    assert result.code == exit_codes.DEFECT
    assert "a stone in the gears" in result.err
    assert "WINDLASS_DEBUG=1" in result.err
    with pytest.raises(ValueError, match="stone"):
        invoke("get", "runs", env={"WINDLASS_DEBUG": "1"})


def test_the_documented_exit_codes_are_those_of_the_code() -> None:
    rows = re.findall(
        r"^\| (\d+) \| (.+?) \|$", (DOCS / "reference/exit-codes.md").read_text(), re.MULTILINE
    )
    assert {int(code): text for code, text in rows} == exit_codes.MEANINGS


def test_the_manual_names_every_command() -> None:
    text = (DOCS / "reference/cli.md").read_text()
    assert [name for name in leaves() if f"windlass {name}" not in text] == []
