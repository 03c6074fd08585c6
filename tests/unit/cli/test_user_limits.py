"""Limits per user on the command line: from flags to the spec, and back into text."""

from __future__ import annotations

import pytest

from windlass.cli.lib import exit_codes, quantities


def test_flags_become_the_spec_of_a_queue() -> None:
    entries = ("gpu=4", "running=2", "ada:gpu=8", "system:serviceaccount:a:b:submitted=9")
    assert quantities.user_limits(entries) == {
        "resources": {"gpu": "4"}, "running": 2,
        "users": {
            "ada": {"resources": {"gpu": "8"}}, "system:serviceaccount:a:b": {"submitted": 9},
        },
    }  # fmt: skip
    assert quantities.user_limits(()) is None


def test_the_spec_is_formatted_in_one_line() -> None:
    limits = quantities.user_limits(("gpu=4", "running=2", "ada:gpu=8"))
    assert quantities.format_user_limits(limits) == "gpu=4 running=2; ada: gpu=8"
    assert quantities.format_user_limits(None) == "-"


@pytest.mark.parametrize("entry", ["gpu", "running=many", "ada:=3", "=4"])
def test_what_cannot_be_read_is_refused_with_the_remedy(entry: str) -> None:
    with pytest.raises(exit_codes.CliError) as refused:
        quantities.user_limits((entry,))
    assert refused.value.code == exit_codes.USAGE
