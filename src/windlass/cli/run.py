"""`windlass run`: a command line becomes a Run, is handed in and followed to its end.

From Enter to the first line of the job every millisecond is somebody's wait, so this module loads
little: it sends the job ahead, and loads the rest (`following`) while the server works.
"""

from __future__ import annotations

import click

from windlass.cli import base, exits, jobs, servers
from windlass.cli.output import Output


@base.command(
    examples=(
        "windlass run --workdir . -- python train.py --epochs 3",
        "windlass run -w 2 --cpus 2 -e EPOCHS=3 -- ~/bench.sh && echo done",
        "windlass run -w 4 --gpus 1 --workdir . --framework torch -- python train.py",
        "windlass run -f run.yaml --priority 80",
        "windlass run --json -- ./bench.sh | jq -r 'select(.type == \"log\") | .text'",
    ),
    context_settings=jobs.SETTINGS,
)
@jobs.options
@jobs.dry_run
@jobs.force
@click.option("-d", "--detach", is_flag=True, help="Return at once, as `submit` does.")
@base.making_target_options
def run(
    out: Output, job: jobs.Job, dry_run: bool, force: bool, detach: bool, target: base.Target
) -> int:
    """Run COMMAND as a job: submit it, show why it waits and what it prints, and wait.

    The exit code is the job's own; 125 when Windlass could not run it. Ctrl-C asks whether to
    detach or to stop the job; a second one detaches at once.
    """
    if dry_run or detach:
        from windlass.cli import submit

        submit.hand_in(out, job, dry_run, force, target)
        return exits.OK
    try:
        value = jobs.wanted(job)
        sent = None if job.workdir else servers.send_ahead(target, value)
    except exits.CliError as problem:
        problem.code = problem.code if problem.code == exits.USAGE else exits.RUN_NOT_STARTED
        raise
    jobs.tell_forgotten(out, job)
    from windlass.cli import following

    return following.handed_in(out, job, value, sent, force, target)
