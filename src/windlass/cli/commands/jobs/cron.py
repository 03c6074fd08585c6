"""`windlass cron`: runs on a schedule."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli.lib import base, client_session
from windlass.cli.lib.flags import field_flags
from windlass.cli.lib.jobs import job_options
from windlass.cli.lib.output import Output
from windlass.kinds import codec
from windlass.kinds.types import cronrun
from windlass.kinds.types import run as kind
from windlass.kinds.values import ages, times

_name = click.argument("name", metavar="NAME")


@click.group(name="cron", cls=base.Group)
def cron() -> None:
    """Start runs on a schedule (CronRun)."""


@base.command(
    examples=(
        "windlass cron create -n nightly --schedule '0 3 * * *' --gpus 1 -- python train.py",
        "windlass cron create -n hourly --schedule @hourly --zone Europe/Berlin -f run.yaml",
    ),
    context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": False},
)
@job_options.options
@click.option("--schedule", required=True, help="As in cron: '0 3 * * 1-5', or @daily.")
@click.option("--zone", default="", help="Time zone of the schedule: Europe/Berlin. [default: UTC]")
@click.option("--concurrency", type=click.Choice(("Allow", "Forbid", "Replace")), default="Allow",
              help="What to do if the last run still runs. [default: Allow]")  # fmt: skip
@click.option(
    "--deadline", default="", metavar="TIME", help="Skip a start that is late by more than this."
)
@click.option("--history", type=click.IntRange(0, 1000), help="Number of succeeded runs to keep.")
@click.option("--held", is_flag=True, help="Create it suspended.")
@base.making_target_options
def create(
    out: Output,
    job: job_options.Job,
    schedule: str,
    zone: str,
    concurrency: str,
    deadline: str,
    history: int | None,
    held: bool,
    target: base.Target,
) -> None:
    """Create a CronRun that starts COMMAND on a schedule. -n names it."""
    from windlass.kinds import validate

    made = job_options.wanted(job)

    async def work(session: client_session.Session) -> dict[str, Any]:
        made["metadata"]["namespace"] = session.namespace
        if job.workdir:
            from windlass.cli.lib.jobs import follow

            digest = await follow.upload(out, session, job, made)
            made["spec"]["code"] = {"digest": digest}
        metadata = made["metadata"]
        name = job.options.get("name") or metadata.get("name")
        name = name or str(metadata["generateName"]).rstrip("-.")
        spec: dict[str, Any] = {
            "schedule": schedule,
            "concurrencyPolicy": concurrency,
            "template": {"spec": made["spec"]},
        }
        spec |= {"timeZone": zone} if zone else {}
        spec |= {"startingDeadline": deadline} if deadline else {}
        spec |= {"successfulHistoryLimit": history} if history is not None else {}
        spec |= {"suspend": True} if held else {}
        value = {
            "apiVersion": cronrun.CronRun.resource.api_version,
            "kind": "CronRun",
            "metadata": {"name": name, "namespace": session.namespace},
            "spec": spec,
        }
        defaulted = validate.defaulted(cronrun.CronRun, value)
        field_flags.checked(
            validate.validate(cronrun.CronRun, defaulted), "The CronRun is not valid."
        )
        stored = await session.store.create(codec.from_dict(cronrun.CronRun, value))
        return codec.to_dict(stored)

    stored = client_session.call(target, work)
    name = stored["metadata"]["name"]
    out.say(f"cronrun/{name} created")
    out.hint(f"  start one now  windlass cron run-now {name}")
    out.result(stored, names=[f"cronrun/{name}"])


@base.command(examples=("windlass cron list", "windlass cron list -A"))
@click.option("-A", "--all-namespaces", is_flag=True, help="In all namespaces.")
@base.target_options
def list_crons(out: Output, all_namespaces: bool, target: base.Target) -> None:
    """List CronRuns with their last start, their next start and their active runs."""

    async def work(session: client_session.Session) -> list[cronrun.CronRun]:
        place = "" if all_namespaces else session.namespace
        return (await session.store.list(cronrun.CronRun, place)).items

    found = client_session.call(target, work)
    rows = []
    for each in found:
        last = each.status.last_schedule_time
        active = ", ".join(run.name for run in each.status.active or ()) or "-"
        first = [each.namespace] if all_namespaces else []
        rows.append(
            [*first, each.name, each.spec.schedule, each.spec.time_zone,
             "suspended" if each.spec.suspend else "active",
             ages.age(last, times.now()) + " ago" if last else "never", _next(each), active]
        )  # fmt: skip
    out.result([codec.to_dict(each) for each in found], names=[each.name for each in found])
    header = ["NAME", "SCHEDULE", "ZONE", "STATE", "LAST", "NEXT", "ACTIVE"]
    if found:
        out.table([*(["NAMESPACE"] if all_namespaces else []), *header], rows)
    else:
        out.hint("No CronRuns. Create one: windlass cron create --help")


@base.command(examples=("windlass cron get nightly",))
@_name
@base.target_options
def get(out: Output, name: str, target: base.Target) -> None:
    """Show one CronRun and its runs."""

    async def work(session: client_session.Session) -> tuple[cronrun.CronRun, list[kind.Run]]:
        found = await session.store.get(cronrun.CronRun, name, session.namespace)
        made = await session.store.list(
            kind.Run, session.namespace, label_selector=f"{cronrun.LABEL_CRONRUN}={name}"
        )
        return found, made.items

    found, made = client_session.call(target, work)
    out.result(
        {"cronrun": codec.to_dict(found), "runs": [codec.to_dict(each) for each in made]},
        names=[each.name for each in made],
    )
    spec = found.spec
    out.say(f"cronrun/{name}: {spec.schedule} ({spec.time_zone}), {spec.concurrency_policy}")
    following = found.status.next_schedule_time
    at = f", next start {following} ({_next(found)})" if following else ""
    out.say("  suspended" if spec.suspend else f"  active{at}")
    out.table(
        ["RUN", "PHASE", "AGE"],
        [
            [
                each.name,
                each.status.phase,
                ages.age(each.metadata.creation_timestamp or "", times.now()),
            ]
            for each in sorted(made, key=lambda each: each.metadata.creation_timestamp or "")
        ],
    )


def _next(of: cronrun.CronRun) -> str:
    """`in 6h31m`, of the next start on the schedule."""
    at = of.status.next_schedule_time
    if not at or of.spec.suspend:
        return "-"
    ahead = (times.parse(at) - times.now()).total_seconds()
    return f"in {ages.duration(round(ahead))}" if ahead >= 1 else "now"


def _switch(word: str, value: bool, outcome: str, text: str) -> click.Command:
    @base.command(examples=(f"windlass cron {word} nightly",), name=word, help=text)
    @_name
    @base.target_options
    def switch(out: Output, name: str, target: base.Target) -> None:
        patch = {"spec": {"suspend": value}}
        client_session.call(
            target,
            lambda session: session.store.patch(
                cronrun.CronRun, name, session.namespace, patch=patch
            ),
        )
        out.say(f"cronrun/{name} {outcome}")
        out.result({"changed": [name]}, names=[f"cronrun/{name}"])

    return switch


@base.command(examples=("windlass cron delete nightly",))
@_name
@base.target_options
def delete(out: Output, name: str, target: base.Target) -> None:
    """Delete a CronRun and its runs."""
    client_session.call(
        target, lambda session: session.store.delete(cronrun.CronRun, name, session.namespace)
    )
    out.say(f"cronrun/{name} deleted")
    out.result({"deleted": [name]}, names=[f"cronrun/{name}"])


@base.command(examples=("windlass cron run-now nightly",))
@_name
@base.target_options
def run_now(out: Output, name: str, target: base.Target) -> None:
    """Start a run of the CronRun now."""

    async def work(session: client_session.Session) -> kind.Run:
        from windlass.kinds.types.meta import ObjectMeta
        from windlass.sdk import run_builder, submission

        found = await session.store.get(cronrun.CronRun, name, session.namespace)
        template = found.spec.template
        labels = dict((template.metadata.labels if template.metadata else None) or {})
        labels[cronrun.LABEL_CRONRUN] = name
        metadata = ObjectMeta(
            name=run_builder.name_for([name]), namespace=session.namespace, labels=labels
        )
        return await submission.create_run(
            session.store, kind.Run(metadata=metadata, spec=template.spec)
        )

    made = client_session.call(target, work)
    out.say(f"run/{made.name} submitted")
    out.hint(f"  follow  windlass attach {made.name}{target.flags}")
    out.result(codec.to_dict(made), names=[f"run/{made.name}"])


cron.add_command(create, "create")
cron.add_command(list_crons, "list")
cron.add_command(get, "get")
cron.add_command(_switch("suspend", True, "is suspended", "Start no runs until `resume`."))
cron.add_command(_switch("resume", False, "is active", "Start runs on schedule again."))
cron.add_command(delete, "delete")
cron.add_command(run_now, "run-now")
