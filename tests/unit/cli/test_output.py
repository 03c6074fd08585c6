"""What people and programs see."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cli.invoking import invoke, terminal
from windlass.cli.commands.jobs import top
from windlass.cli.lib.output import Mode, Output

COLUMNS = ["NAME", "PHASE", "MESSAGE"]
ROWS = [
    [
        "bert-finetune",
        "Queued",
        "needs 4 gpu; queue support may use 2 more until vision gives back",
    ],
    ["a", "Running", ""],
]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_table_never_gets_wider_than_the_terminal(width: int) -> None:
    with terminal(width) as screen:
        Output().table(COLUMNS, ROWS)
    lines = screen.text.splitlines()
    assert len(lines) == 3
    assert all(len(line) <= width for line in lines)
    assert lines[1].startswith("bert-fine")
    assert lines[2].startswith("a")


def test_a_narrow_terminal_loses_the_last_columns_before_the_name() -> None:
    with terminal(25) as screen:
        Output().table(COLUMNS, ROWS)
    assert screen.text.splitlines()[1] == "bert-finetune  Queued"


def test_a_narrow_terminal_never_cuts_short_words() -> None:
    rows = [["import-numpy-print-numpy-jjctg", "Succeeded", "100s", "x" * 99]]
    with terminal(50) as screen:
        Output().table(["NAME", "PHASE", "FOR", "STATE"], rows)
    assert "Succeeded  100s" in screen.text


def test_a_table_in_a_pipe_is_not_cut() -> None:
    lines = list(Output().table_lines(COLUMNS, ROWS))
    assert ROWS[0][2] in lines[1]


def test_cut_text_is_marked_in_ascii_where_nothing_else_can_be_shown() -> None:
    with terminal(40, "utf-8") as screen:
        Output().table(COLUMNS, ROWS)
    assert "…" in screen.text
    with terminal(40, "ascii") as screen:
        Output().table(COLUMNS, ROWS)
    assert "..." in screen.text


def test_text_that_cannot_be_encoded_does_not_fail() -> None:
    with terminal(40, "ascii") as screen:
        Output().say("größer")
    assert screen.text == "gr\\xf6\\xdfer\n"


@pytest.mark.parametrize(
    ("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour_only_on_a_terminal_that_wants_it(
    env: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with terminal(80) as screen:
        Output().say(Output().mark("ok"))
    assert ("\x1b[" in screen.text) is coloured


def test_no_colour_in_a_pipe() -> None:
    assert "\x1b" not in invoke("doctor").out


@given(
    st.lists(st.tuples(st.text(max_size=30), st.text(max_size=120)), min_size=1, max_size=5),
    st.integers(20, 120),
)
def test_any_cells_stay_one_line_each(cells: list[tuple[str, str]], width: int) -> None:
    with terminal(width):
        lines = list(Output().table_lines(["A", "B"], cells))
    assert len(lines) == len(cells) + 1
    assert not any("\n" in line for line in lines)


@pytest.mark.parametrize(
    ("mode", "out"),
    [("human", "words\n"), ("json", '{"a": 1}'), ("quiet", "name\n")],
)
def test_each_mode_prints_its_own_and_nothing_else(
    mode: Mode, out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = Output(mode)
    output.say("words")
    output.hint("try this")
    output.result({"a": 1}, names=["name"])
    printed = capsys.readouterr()
    assert printed.out == out or json.loads(printed.out) == json.loads(out)
    assert printed.err == ("try this\n" if mode == "human" else "")


def test_a_confirmation_names_its_flag_without_a_terminal() -> None:
    from windlass.cli.lib.exit_codes import CliError

    with pytest.raises(CliError) as caught:
        Output("json").confirm("Replace it?", "--yes")
    assert "--yes" in caught.value.remedy


# --- top ----------------------------------------------------------------------------------------

_GI = 2.0**30
_RUNS = [
    {
        "name": "a-run-with-a-long-name",
        "phase": "Running",
        "members": 2,
        "resources": {
            "cpu": {"given": 0.3, "used": 0.222},
            "memory": {"given": 600 * 2.0**20, "used": 128 * 2.0**20},
            "nvidia.com/gpu": {"given": 2.0},
        },
    }
]
_NODES = [
    {
        "name": "vm",
        "ready": True,
        "resources": {
            "cpu": {"total": 128.0, "given": 96.5, "used": 101.0},
            "memory": {"total": 2015 * _GI, "given": 1024 * _GI, "used": 512 * _GI},
        },
    }
]


@pytest.mark.parametrize("width", [40, 46, 60, 80, 120])
def test_top_keeps_the_amounts_of_runs_on_a_narrow_terminal(width: int) -> None:
    with terminal(width):
        lines = top.run_lines(Output(), _RUNS)
    assert all(len(line) <= width for line in lines)
    assert lines[0].startswith("NAME")
    assert "0.222/0.3" in lines[1]
    assert "128Mi/600Mi" in lines[1]
    assert ("█" in lines[1]) == (width > 100)


@pytest.mark.parametrize("width", [50, 60, 80, 120])
def test_top_keeps_the_amounts_of_nodes_on_a_narrow_terminal(width: int) -> None:
    with terminal(width):
        lines = top.node_lines(Output(), _NODES)
    assert all(len(line) <= width for line in lines)
    assert lines[1].endswith("101 used of 128 (96.5 allocated)")
    assert lines[2].endswith("512Gi used of 1.97Ti (1Ti allocated)")
    assert ("█" in lines[1]) == (width >= 60)
