"""How usage is shown to people."""

from __future__ import annotations

import pytest

from tests.unit.cli.invoking import invoke
from windlass.cli.commands.sharing import usage
from windlass.cli.lib import exit_codes, output


def test_what_is_below_each_other_can_be_added_up(capsys):
    told = {
        "since": "2026-11-01T00:00:00Z",
        "until": "2026-11-02T00:00:00Z",
        "by": ["team"],
        "currency": "EUR",
        "rows": [
            {"labels": {"team": "vision"}, "machineHours": 0.011111, "cpuHours": 1234.5},
            {"labels": {"team": "language"}, "machineHours": 0.001667, "cpuHours": 0.25},
        ],
        "total": {"machineHours": 0.012778, "cpuHours": 1234.75, "costMicros": 3001},
        "idle": {"machineHours": 0.027778, "costMicros": 11656},
    }
    usage.show(output.Output(), told)
    assert [line.split() for line in capsys.readouterr().out.splitlines()[-4:]] == [
        ["vision", "-", "0.011111", "1,234.50", "-", "-"],
        ["language", "-", "0.001667", "0.25", "-", "-"],
        ["(total)", "-", "0.012778", "1,234.75", "-", "0.003001", "EUR"],
        ["(idle)", "-", "0.027778", "-", "-", "0.011656", "EUR"],
    ]


def _points() -> dict[str, object]:
    teams = {"vision": {"held": 1.5, "lent": 0.0}, "language": {"held": 0.5, "used": 0.25}}
    gpus = {"at": "T1", "device": "gpu/a100", "present": 4.0, "held": 2.0, "idle": 2.0,
            "lent": 1.0, "borrowed": 0.0, "waiting": 8.0, "teams": teams}  # fmt: skip
    cores = {"at": "T1", "device": "cpu", "present": 64.0, "held": 0.0, "idle": 64.0, "used": 3.5,
             "teams": {}}  # fmt: skip
    return {"points": [gpus, cores], "queues": []}


def test_the_fleet_by_model_and_devices_without_measurements(capsys):
    usage._show_fleet(output.Output(), _points(), "model")
    told = capsys.readouterr()
    assert [line.split() for line in told.out.splitlines()[1:]] == [
        ["T1", "gpu/a100", "4", "2", "-", "2", "0", "1", "8"],
        ["T1", "cpu", "64", "0", "3.5", "64", "-", "-", "-"],
    ]
    assert "without measurements: gpu/a100." in told.err


def test_the_fleet_by_team(capsys):
    usage._show_fleet(output.Output(), _points(), "team")
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["T1", "language", "gpu/a100", "0.5", "0.25", "-", "-", "-"],
        ["T1", "vision", "gpu/a100", "1.5", "-", "-", "0", "-"],
    ]


@pytest.mark.parametrize(
    ("arguments", "message", "remedy"),
    [
        (["--statement", "html", "--since", "x"], "--statement cannot be combined with --since.",
         "--month"),
        (["--all", "--statement", "csv", "--by", "team"],
         "--statement cannot be combined with --by.", "Leave out --by"),
        (["--fleet", "--user", "ann"], "--fleet cannot be combined with --user.",
         "Leave out --user"),
        (["--verify", "--top", "3"], "--verify cannot be combined with --top.", "Leave out --top"),
        (["--all", "--fleet"], "--all and --fleet cannot be combined.", "Use only --all."),
        (["--verify", "--statement", "csv"], "--verify and --statement cannot be combined.",
         "only"),
        (["-o", "f.html"], "-o is the file of a statement.", "--statement html"),
        (["--statement", "text", "-o", "f"], "-o is the file of a statement.", "html or csv"),
        (["--until", "x"], "--until is used with --since.", "--since TIME"),
        (["--month", "2026-10", "--since", "x"], "--month cannot be combined with --since",
         "month"),
    ],
)  # fmt: skip
def test_an_option_that_the_report_would_ignore_is_refused_by_name(arguments, message, remedy):
    result = invoke("usage", *arguments)
    assert result.code == exit_codes.USAGE
    assert message in result.err
    assert remedy in result.err
