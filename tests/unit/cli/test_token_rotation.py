"""`windlass token rotate`: the new token is not lost when its file cannot be written."""

from __future__ import annotations

import pytest

from windlass.cli.commands.sharing import token
from windlass.cli.lib import exit_codes


class Shown:
    """Takes the warnings."""

    def __init__(self):
        self.warned = []

    def warn(self, text):
        self.warned.append(text)


@pytest.mark.parametrize("problem", [PermissionError(13, "no"), exit_codes.CliError("no name")])
def test_a_token_that_cannot_be_written_is_shown(problem):
    def save():
        raise problem

    out, made = Shown(), {"id": "1", "user": "ann", "token": "secret"}
    assert token._or_shown(out, made, save) == made
    assert len(out.warned) == 1
    assert "secret" not in out.warned[0]


def test_a_token_that_is_written_is_not_shown():
    out = Shown()
    written = {"token": "", "file": "x"}
    assert token._or_shown(out, {"token": "secret"}, lambda: written) == written
    assert not out.warned
