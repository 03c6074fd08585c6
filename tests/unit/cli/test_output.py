"""What people and programs see."""

from __future__ import annotations

import json
from typing import Any

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
        "namespace": "vision",
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


def many_nodes() -> list[dict[str, Any]]:
    """2,000 nodes; n7 is the busiest, n9 is not ready and measures nothing."""
    found = []
    for number in range(2000):
        cpu = {"total": 64.0, "given": 60.0 if number == 7 else 1.0, "used": 0.5}
        if number == 9:
            del cpu["used"]
        resources = {"cpu": cpu, "nvidia.com/gpu": {"total": 8.0, "given": 4.0}}
        found.append({"name": f"n{number}", "ready": number != 9, "resources": resources})
    return found


def test_top_of_many_nodes_has_the_sums_and_a_page_of_the_busiest() -> None:
    with terminal(80):
        lines = top.node_lines(Output(), many_nodes(), 20, 1)
    assert len(lines) == 21 * 3 + 1
    assert lines[0] == "2000 nodes, 1 NOT ready"
    assert lines[1].endswith("2059 allocated of 128000"), "one node does not measure"
    assert lines[2].endswith("8000 allocated of 16000")
    assert [lines[3], lines[6]] == ["n9  NOT ready", "n7"]
    assert lines[-1] == "Nodes 1 to 20 of 2000, the busiest first; next: --page 2."


def test_top_has_pages() -> None:
    with terminal(80):
        last = top.node_lines(Output(), many_nodes(), 600, 4)
        beyond = top.node_lines(Output(), many_nodes(), 600, 5)
        runs = top.run_lines(Output(), _RUNS * 15, 10, 2)
    assert last[-1] == "Nodes 1801 to 2000 of 2000, the busiest first."
    assert beyond[-1] == "There are 2000 nodes, 4 pages of 600."
    assert len(runs) == 1 + min(10, 15 * len(_RUNS) - 10) + 1
    assert runs[-1].startswith("Runs 11 to ")


def test_top_does_not_say_what_the_user_may_not_read() -> None:
    nodes = [{"name": "n", "ready": True, "resources": {"cpu": {"total": 8.0, "used": 3.0}}}]
    nodes.append({"name": "m", "ready": True, "resources": {"cpu": {"total": 8.0, "used": 1.0}}})
    with terminal(80):
        assert top.node_lines(Output(), nodes)[1].endswith(" 3 used of 8")
        assert top.node_lines(Output(), nodes, 1)[1].endswith(" 4 used of 16")


def test_top_of_all_namespaces_names_them() -> None:
    with terminal(120):
        lines = top.run_lines(Output(), _RUNS, everywhere=True)
    assert lines[0].startswith("NAMESPACE  NAME")
