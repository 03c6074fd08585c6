"""`windlass debug-dump`: what a defect report needs, in one file."""

from __future__ import annotations

import os
from pathlib import Path

import click

from windlass.cli.lib import base, exit_codes
from windlass.cli.lib.output import Output
from windlass.kinds.values import times


@base.command(
    examples=(
        "windlass debug-dump",
        "windlass debug-dump report.tar.gz --context prod",
        "tar tzf windlass-debug-20260101-102000.tar.gz",
    )
)
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@base.target_options
def debug_dump(out: Output, file: Path | None, target: base.Target) -> None:
    """Collect status, objects, logs and metrics of Windlass in FILE (.tar.gz) for a defect report.

    Works with a running engine, a stopped one and a cluster. FILE contains names of users, runs,
    queues and nodes. It contains no commands, variables, Secrets or output of jobs, and what looks
    like a key or a password is removed. Read it before you share it.
    """
    from windlass.cli.engine import debug_dump as dumps

    name = f"windlass-debug-{times.now():%Y%m%d-%H%M%S}"
    path = file or Path(f"{name}.tar.gz")
    if path.exists():
        raise exit_codes.CliError(
            f"{path} exists already.", "Choose another name.", exit_codes.CONFLICT
        )
    with out.progress("Collecting status, objects, logs and metrics"):
        dump = dumps.collect(target)
        content = dump.archive(name)
    try:
        # Only the caller may read it.
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as written:
            written.write(content)
    except OSError as problem:
        raise exit_codes.CliError(
            f"{path} cannot be written: {problem.strerror or problem}.", "Choose another file."
        ) from problem
    out.say(f"{path}: {len(dump.files)} files, {len(content) / 1e6:.1f} MB")
    for each, reason in dump.missing.items():
        out.warn(f"{each} could not be collected: {reason}")
    out.hint(f"Read it before you share it: tar xzf {path}")
    data = {
        "file": str(path.absolute()),
        "bytes": len(content),
        "files": sorted(dump.files),
        "missing": dump.missing,
    }
    out.result(data, names=[str(path)])
