"""What is told of a server that is away while a command waits for it."""

from __future__ import annotations

import logging

import click
import pytest

from windlass.cli import client
from windlass.cli.output import Output

log = logging.getLogger("windlass.store.reflector")


def test_one_trouble_is_told_once_however_many_are_followed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    context = click.Context(click.Command("get"), obj=Output())
    with context, client._troubles_told():
        for what in ("runs.windlass.dev", "pods", "runs.windlass.dev"):
            log.warning("following %s again in %.1f s: %s", what, 0.2, "connection refused")
        log.warning("following %s again in %.1f s: %s", "pods", 0.2, "not authorised")
    told = capsys.readouterr().err.splitlines()
    assert [line.rpartition(": ")[2] for line in told] == ["connection refused", "not authorised"]
