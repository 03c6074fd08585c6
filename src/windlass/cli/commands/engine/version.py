"""`windlass version`."""

from __future__ import annotations

import platform

import windlass
from windlass.cli import base
from windlass.cli.output import Output


@base.command(examples=("windlass version", "windlass version --json | jq -r .version"))
def version(out: Output) -> None:
    """Show the version of Windlass and of the Python it runs on."""
    data = {"version": windlass.__version__, "python": platform.python_version()}
    out.say(f"windlass {data['version']} (Python {data['python']})")
    out.result(data, names=[windlass.__version__])
