"""How usage is shown to people."""

from __future__ import annotations

from windlass.cli import output, usage


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


def test_the_fleet_by_model_and_what_is_not_measured_is_said(capsys):
    usage._show_fleet(output.Output(), _points(), "model")
    told = capsys.readouterr()
    assert [line.split() for line in told.out.splitlines()[1:]] == [
        ["T1", "gpu/a100", "4", "2", "-", "2", "0", "1", "8"],
        ["T1", "cpu", "64", "0", "3.5", "64", "-", "-", "-"],
    ]
    assert "where nothing measures it: gpu/a100." in told.err


def test_the_fleet_by_team(capsys):
    usage._show_fleet(output.Output(), _points(), "team")
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["T1", "language", "gpu/a100", "0.5", "0.25", "-", "-", "-"],
        ["T1", "vision", "gpu/a100", "1.5", "-", "-", "0", "-"],
    ]
