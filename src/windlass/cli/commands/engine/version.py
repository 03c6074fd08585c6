"""`windlass version`."""

from __future__ import annotations

import platform

from windlass.cli.lib import base
from windlass.cli.lib.output import Output
from windlass.version import VERSION


@base.command(examples=("windlass version", "windlass version --json | jq -r .version"))
def version(out: Output) -> None:
    """Show the version of Windlass and of the Python it runs on."""
    data = {"version": VERSION, "python": platform.python_version()}
    out.say(f"windlass {data['version']} (Python {data['python']})")
    out.result(data, names=[VERSION])
