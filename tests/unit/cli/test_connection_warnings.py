"""Warnings about a server that cannot be reached while a command waits for it."""

from __future__ import annotations

import logging

import click
import pytest

from windlass.cli.lib import client_session
from windlass.cli.lib.output import Output

log = logging.getLogger("windlass.store.informer")


def test_a_warning_is_printed_once_for_all_informers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    context = click.Context(click.Command("get"), obj=Output())
    with context, client_session._warnings_as_hints():
        for what in ("runs.windlass.dev", "pods", "runs.windlass.dev"):
            log.warning("following %s again in %.1f s: %s", what, 0.2, "connection refused")
        log.warning("following %s again in %.1f s: %s", "pods", 0.2, "not authorised")
    printed = capsys.readouterr().err.splitlines()
    assert [line.rpartition(": ")[2] for line in printed] == [
        "connection refused",
        "not authorised",
    ]
