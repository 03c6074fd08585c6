"""`windlass cron`: runs by the clock."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli import base, client, exits, jobs
from windlass.cli.output import Output
from windlass.kinds import ages, cronrun, times, wire
from windlass.kinds import run as kind

_name = click.argument("name", metavar="NAME")


@click.group(name="cron", cls=base.Group)
def cron() -> None:
    """Start runs by the clock."""


@base.command(
    examples=(
        "windlass cron create -n nightly --schedule '0 3 * * *' --gpus 1 -- python train.py",
        "windlass cron create -n hourly --schedule @hourly --zone Europe/Berlin -f run.yaml",
    ),
    context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": False},
)
@jobs.options
@click.option("--schedule", required=True, help="As in cron: '0 3 * * 1-5', or @daily.")
@click.option("--zone", default="", help="Where the clock hangs: Europe/Berlin. [default: UTC]")
@click.option("--concurrency", type=click.Choice(("Allow", "Forbid", "Replace")), default="Allow",
              help="If the last one still runs. [default: Allow]")  # fmt: skip
@click.option("--deadline", default="", metavar="TIME", help="Skip a start missed by more.")
@click.option("--history", type=click.IntRange(0, 1000), help="Runs that succeeded to keep.")
@click.option("--held", is_flag=True, help="Make it, but start nothing yet.")
@base.making_target_options
def create(
    out: Output,
    job: jobs.Job,
    schedule: str,
    zone: str,
    concurrency: str,
    deadline: str,
    history: int | None,
    held: bool,
    target: base.Target,
) -> None:
    """Make a CronRun that starts COMMAND by the clock. -n names it."""
    from windlass.kinds import validation

    made = jobs.wanted(job)

    async def work(session: client.Session) -> dict[str, Any]:
        made["metadata"]["namespace"] = session.namespace
        if job.workdir:
            from windlass.cli import following

            digest = await following.upload(out, session, job, made)
            made["spec"]["code"] = {"digest": digest}
        name = job.words.get("name") or made["metadata"]["name"]
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
        defaulted = validation.defaulted(cronrun.CronRun, value)
        if faults := validation.validate(cronrun.CronRun, defaulted):
            listed = "\n".join(str(fault) for fault in faults)
            raise exits.CliError("The schedule cannot be made like this.", listed, exits.INVALID)
        stored = await session.store.create(wire.from_dict(cronrun.CronRun, value))
        return wire.to_dict(stored)

    stored = client.call(target, work)
    name = stored["metadata"]["name"]
    out.say(f"cronrun/{name} created")
    out.hint(f"  start one now  windlass cron run-now {name}")
    out.result(stored, names=[f"cronrun/{name}"])


@base.command(examples=("windlass cron list", "windlass cron list -A"))
@click.option("-A", "--all-namespaces", is_flag=True, help="In all namespaces.")
@base.target_options
def list_crons(out: Output, all_namespaces: bool, target: base.Target) -> None:
    """List CronRuns with their last and active runs."""

    async def work(session: client.Session) -> list[cronrun.CronRun]:
        place = "" if all_namespaces else session.namespace
        return (await session.store.list(cronrun.CronRun, place)).items

    found = client.call(target, work)
    rows = []
    for each in found:
        last = each.status.last_schedule_time
        active = ", ".join(run.name for run in each.status.active or ()) or "-"
        first = [each.namespace] if all_namespaces else []
        rows.append(
            [*first, each.name, each.spec.schedule, each.spec.time_zone,
             "held" if each.spec.suspend else "on",
             ages.told(last, times.now()) + " ago" if last else "never", active]
        )  # fmt: skip
    out.result([wire.to_dict(each) for each in found], names=[each.name for each in found])
    header = ["NAME", "SCHEDULE", "ZONE", "STATE", "LAST", "ACTIVE"]
    if found:
        out.table([*(["NAMESPACE"] if all_namespaces else []), *header], rows)
    else:
        out.hint("No cronruns. Make one: windlass cron create --help")


@base.command(examples=("windlass cron get nightly",))
@_name
@base.target_options
def get(out: Output, name: str, target: base.Target) -> None:
    """Show one CronRun and the runs it made."""

    async def work(session: client.Session) -> tuple[cronrun.CronRun, list[kind.Run]]:
        found = await session.store.get(cronrun.CronRun, name, session.namespace)
        made = await session.store.list(
            kind.Run, session.namespace, label_selector=f"{cronrun.LABEL_CRONRUN}={name}"
        )
        return found, made.items

    found, made = client.call(target, work)
    out.result(
        {"cronrun": wire.to_dict(found), "runs": [wire.to_dict(each) for each in made]},
        names=[each.name for each in made],
    )
    spec = found.spec
    out.say(f"cronrun/{name}: {spec.schedule} ({spec.time_zone}), {spec.concurrency_policy}")
    out.say("  held: starts nothing" if spec.suspend else "  on")
    out.table(
        ["RUN", "PHASE", "AGE"],
        [
            [
                each.name,
                each.status.phase,
                ages.told(each.metadata.creation_timestamp or "", times.now()),
            ]
            for each in sorted(made, key=lambda each: each.metadata.creation_timestamp or "")
        ],
    )


def _switch(word: str, value: bool, told: str, text: str) -> click.Command:
    @base.command(examples=(f"windlass cron {word} nightly",), name=word, help=text)
    @_name
    @base.target_options
    def switch(out: Output, name: str, target: base.Target) -> None:
        patch = {"spec": {"suspend": value}}
        client.call(
            target,
            lambda session: session.store.patch(
                cronrun.CronRun, name, session.namespace, patch=patch
            ),
        )
        out.say(f"cronrun/{name} {told}")
        out.result({"changed": [name]}, names=[f"cronrun/{name}"])

    return switch


@base.command(examples=("windlass cron delete nightly",))
@_name
@base.target_options
def delete(out: Output, name: str, target: base.Target) -> None:
    """Delete a CronRun and the runs it made."""
    client.call(
        target, lambda session: session.store.delete(cronrun.CronRun, name, session.namespace)
    )
    out.say(f"cronrun/{name} deleted")
    out.result({"deleted": [name]}, names=[f"cronrun/{name}"])


@base.command(examples=("windlass cron run-now nightly",))
@_name
@base.target_options
def run_now(out: Output, name: str, target: base.Target) -> None:
    """Start one of its runs now, whatever the clock says."""

    async def work(session: client.Session) -> kind.Run:
        from windlass.kinds.meta import ObjectMeta
        from windlass.sdk import runs

        found = await session.store.get(cronrun.CronRun, name, session.namespace)
        template = found.spec.template
        labels = dict((template.metadata.labels if template.metadata else None) or {})
        labels[cronrun.LABEL_CRONRUN] = name
        metadata = ObjectMeta(
            name=runs.name_for([name]), namespace=session.namespace, labels=labels
        )
        return await session.store.create(kind.Run(metadata=metadata, spec=template.spec))

    made = client.call(target, work)
    out.say(f"run/{made.name} submitted")
    out.hint(f"  follow  windlass attach {made.name}{target.flags}")
    out.result(wire.to_dict(made), names=[f"run/{made.name}"])


cron.add_command(create, "create")
cron.add_command(list_crons, "list")
cron.add_command(get, "get")
cron.add_command(_switch("suspend", True, "is held", "Start nothing until `resume`."))
cron.add_command(_switch("resume", False, "is on", "Let the clock start runs again."))
cron.add_command(delete, "delete")
cron.add_command(run_now, "run-now")
