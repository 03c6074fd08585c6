"""`windlass run`: submits a command line as a Run and follows it to its end.

The user waits from Enter to the first log line, so this module imports little: it sends the request
early, and imports the rest (`cli.lib.follow`) while the server handles it.
"""

from __future__ import annotations

import click

from windlass.cli.lib import base, exit_codes, server_target
from windlass.cli.lib.jobs import job_options
from windlass.cli.lib.output import Output


@base.command(
    examples=(
        "windlass run --workdir . -- python train.py --epochs 3",
        "windlass run -w 2 --cpus 2 -e EPOCHS=3 -- ~/bench.sh && echo done",
        "windlass run -w 4 --gpus 1 --workdir . --framework torch -- python train.py",
        "windlass run -f run.yaml --priority 80",
        "windlass run -n train --replace --workdir . -- python train.py",
        "windlass run --json -- ./bench.sh | jq -r 'select(.type == \"log\") | .text'",
    ),
    context_settings=job_options.SETTINGS,
)
@job_options.options
@job_options.dry_run
@job_options.force
@job_options.replace
@click.option("-d", "--detach", is_flag=True, help="Do not wait, as `submit`.")
@base.making_target_options
def run(
    out: Output, job: job_options.Job, dry_run: bool, force: bool, replace: bool, detach: bool,
    target: base.Target,
) -> int:  # fmt: skip
    """Run COMMAND as a job: submit it, print its state and its logs, and wait for its end.

    The exit code is the job's own; 125 if Windlass could not run it. Ctrl-C asks whether to
    detach or to stop the job; a second Ctrl-C detaches.
    """
    if dry_run or detach:
        from windlass.cli.commands.jobs import submit

        submit.submit_job(out, job, dry_run, force, replace, target)
        return exit_codes.OK
    from windlass.sdk import run_builder

    try:
        value = job_options.wanted(job)
        run_builder.mark(value)
        asks_first = job.workdir or replace or (run_builder.needs_check(value) and not force)
        sent = None if asks_first else server_target.send_early(target, value)
    except exit_codes.CliError as problem:
        problem.code = (
            problem.code if problem.code == exit_codes.USAGE else exit_codes.RUN_NOT_STARTED
        )
        raise
    job_options.hint_missing_workdir(out, job)
    from windlass.cli.lib.jobs import follow

    return follow.run_to_end(out, job, value, sent, force, replace, target)
