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
