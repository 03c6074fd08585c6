"""`windlass tune` and `windlass study`: search hyperparameters, and see the results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from windlass.cli.lib import base, client_session, exit_codes, server_target
from windlass.cli.lib.jobs import job_options
from windlass.cli.lib.jobs.follow import place, require_references
from windlass.cli.lib.output import Output
from windlass.kinds.values import ages, times

if TYPE_CHECKING:
    from windlass.sdk.tuning.definition import Definition
    from windlass.sdk.tuning.study import StudyOutcome
    from windlass.sdk.tuning.trials import Trial

_MOST = click.IntRange(1, 1_000_000)
_SAMPLERS = click.Choice(("auto", "tpe", "random", "grid", "nsga2", "cmaes"))
_PRUNERS = click.Choice(("none", "median", "hyperband", "halving"))


@base.command(
    examples=(
        "windlass tune -s lr=log:1e-5..1e-1 --metric val_loss --trials 20 --workdir . "
        "-- python train.py --lr '$lr'",
        "windlass tune -n sweep -s layers=1..4 -s opt=adam,sgd --sampler grid --metric loss "
        "--maximize -g 1 --workdir . -- python train.py --layers '$layers' --opt '$opt'",
    ),
    context_settings=job_options.SETTINGS,
)
@click.option("-s", "--search", "space", multiple=True, metavar="NAME=RANGE",
              help="Parameter to search: 1..4, 0.1..0.5, log:1e-5..1e-1, adam,sgd.")  # fmt: skip
@click.option("--metric", default="value", help="Metric that the job reports. [default: value]")
@click.option("--maximize", is_flag=True, help="The largest value is the best one.")
@click.option("--trials", type=_MOST, default=20, help="Number of trials. [default: 20]")
@click.option("--parallel", type=click.IntRange(1, 4096), default=2,
              help="Trials at a time. [default: 2]")  # fmt: skip
@click.option("--sampler", type=_SAMPLERS, default="auto", help="How parameters are chosen.")
@click.option("--prune", type=_PRUNERS, default="none", help="When to stop bad trials early.")
@click.option("--seed", type=int, help="Makes the choice of parameters repeatable.")
@click.option("--max-failed", type=click.IntRange(0), default=10,
              help="Failed trials that end the study. [default: 10]")  # fmt: skip
@job_options.options
@base.making_target_options
def tune(
    out: Output, job: job_options.Job, space: tuple[str, ...], metric: str, maximize: bool,
    trials: int, parallel: int, sampler: str, prune: str, seed: int | None, max_failed: int,
    target: base.Target,
) -> None:  # fmt: skip
    """Search the parameters for which COMMAND is best. Each trial is a run.

    $NAME of a parameter in COMMAND and in --env is replaced by its value. The job reports its
    result with windlass.report(METRIC=value). The same command with the same --name continues an
    interrupted study.
    """
    definition = _definition(space, metric, maximize, sampler, prune, seed)
    value = job_options.wanted(job)
    job_options.hint_missing_workdir(out, job)

    async def prepare(session: client_session.Session) -> None:
        await require_references(session, value)
        await place(out, session, job, value)

    client_session.call(target, prepare)
    name = str(value["metadata"].get("name") or value["metadata"]["generateName"].rstrip("-"))
    out.say(f"study/{name}: up to {trials} trials, {parallel} at a time")
    limits = trials, parallel, max_failed
    _conclude(out, _tuned(out, value, name, definition, limits, target))


@click.group(name="study", cls=base.Group)
def study() -> None:
    """See the results of `windlass tune` and `windlass.tune`."""


@base.command(name="list", examples=("windlass study list", "windlass study list --json"))
@click.option("--limit", type=click.IntRange(1, 1000), default=50,
              help="Show at most N studies. [default: 50]")  # fmt: skip
@base.target_options
def list_studies(out: Output, limit: int, target: base.Target) -> None:
    """List studies, newest first."""

    async def work(session: client_session.Session) -> list[dict[str, Any]]:
        return list((await session.read(_path(session), [("limit", str(limit))]))["items"])

    found = client_session.call(target, work)
    now = times.now().timestamp()
    rows = []
    for each in found:
        counts, body = each["trials"], each["body"]
        rows.append(
            [each["name"], ",".join(body["metrics"]), ",".join(body["directions"]),
             *(str(counts.get(state, 0)) for state in ("complete", "pruned", "failed", "running")),
             "yes" if each["expires"] > now else "no",
             ages.duration(int(now - each["created"]))]
        )  # fmt: skip
    out.result(found, names=[f"study/{each['name']}" for each in found])
    out.table(
        ["NAME", "METRIC", "DIRECTION", "COMPLETE", "PRUNED", "FAILED", "RUNNING", "ACTIVE", "AGE"],
        rows,
    )
    if not found:
        out.hint("No study exists here. Start one: windlass tune -s x=1..4 -- COMMAND '$x'")


@base.command(name="get", examples=("windlass study get sweep", "windlass study get sweep --json"))
@click.argument("name", metavar="STUDY")
@click.option("--limit", type=click.IntRange(1, 100_000), default=20,
              help="Show the N best trials. [default: 20]")  # fmt: skip
@base.target_options
def get_study(out: Output, name: str, limit: int, target: base.Target) -> None:
    """Show the trials of STUDY, the best first."""
    definition, trials = _read(target, name)
    ordered = _ordered(definition, trials)
    rows = [
        [str(each.number), each.state, _values(each), _params(each), each.run or "-",
         (each.message or "-")[:100]]
        for each in ordered[:limit]
    ]  # fmt: skip
    out.result(
        {"name": name, **definition.plain(), "trials": [_plain(each) for each in ordered]},
        names=[str(each.number) for each in ordered],
    )
    out.table(
        ["TRIAL", "STATE", "+".join(definition.metrics).upper(), "PARAMETERS", "RUN", "MESSAGE"],
        rows,
    )
    if len(ordered) > limit:
        out.hint(f"{len(ordered) - limit} more; --limit {len(ordered)} shows all.")


@base.command(name="best", examples=("windlass study best sweep", "windlass study best sweep -q"))
@click.argument("name", metavar="STUDY")
@base.target_options
def best_of_study(out: Output, name: str, target: base.Target) -> None:
    """Show the parameters of the best trial of STUDY."""
    from windlass.sdk.tuning import trials as trial_records

    definition, trials = _read(target, name)
    found = trial_records.best(trials, definition.directions)
    if not found:
        raise exit_codes.CliError(
            f"No trial of study {name} is complete.",
            f"See its trials: windlass study get {name}",
            exit_codes.NOT_FOUND,
        )
    out.result([_plain(each) for each in found], names=[_params(each) for each in found])
    for each in found:
        run = f" (run/{each.run})" if each.run else ""
        out.say(f"trial {each.number}{run}: {'+'.join(definition.metrics)} {_values(each)}")
        for key, value in each.params.items():
            out.say(f"  {key} = {value}")


@base.command(name="delete", examples=("windlass study delete sweep",))
@click.argument("name", metavar="STUDY")
@base.target_options
def delete_study(out: Output, name: str, target: base.Target) -> None:
    """Delete the record of STUDY and its trials. Their runs stay."""

    async def work(session: client_session.Session) -> None:
        await session.ask("DELETE", f"{_path(session)}/{name}")

    client_session.call(target, work)
    out.say(f"study/{name} deleted")
    out.result({"name": name, "deleted": True}, names=[f"study/{name}"])


for _command in (list_studies, get_study, best_of_study, delete_study):
    study.add_command(_command)


def _definition(
    space: tuple[str, ...], metric: str, maximize: bool, sampler: Any, prune: Any, seed: int | None
) -> Definition:
    from windlass.sdk.tuning import definition

    given = {}
    for each in space:
        name, equals, text = each.partition("=")
        if not equals:
            raise exit_codes.CliError(
                f"-s {each} is not a parameter.", "Write -s NAME=RANGE, as -s lr=log:1e-5..1e-1.",
                exit_codes.USAGE,
            )  # fmt: skip
        given[name] = text
    if not given:
        raise exit_codes.CliError(
            "No parameter to search was given.", "Add one: -s lr=log:1e-5..1e-1.", exit_codes.USAGE
        )
    try:
        return definition.define(
            given, metric=metric, direction="maximize" if maximize else "minimize",
            sampler=sampler, prune=prune, seed=seed,
        )  # fmt: skip
    except ValueError as problem:
        text = str(problem)
        where = f"-s {text.removeprefix('parameter ')}" if text.startswith("parameter ") else text
        raise exit_codes.CliError(f"{where}.", "", exit_codes.USAGE) from problem


def _tuned(
    out: Output, value: dict[str, Any], name: str, definition: Definition,
    limits: tuple[int, int, int], target: base.Target,
) -> StudyOutcome:  # fmt: skip
    import windlass
    from windlass.sdk.tuning import study as studies
    from windlass.sdk.tuning.study_client import StudyExists
    from windlass.sdk.tuning.suggestions import MissingOptuna
    from windlass.store import errors

    def ended(trial: Trial) -> None:
        what = trial.message if trial.state == "failed" else _values(trial)
        out.say(f"trial {trial.number:<5} {trial.state:9} {what:12} {_params(trial)}")

    with windlass.Client(
        kubeconfig=server_target.kubeconfig(target), context=target.context or None,
        namespace=target.namespace,
    ) as client:  # fmt: skip
        try:
            return studies.tune_run(
                value, definition, studies.Limits(*limits), client=client, name=name, on_trial=ended
            )
        except errors.ApiError as problem:
            raise client_session.fault(problem, client.aio.store) from problem
        except KeyboardInterrupt:
            out.hint(
                f"The trials that ran are stopped. The same command with -n {name} continues the "
                "study."
            )
            raise
        except (studies.StudyFailed, StudyExists) as problem:
            raise exit_codes.CliError(
                f"{_sentence(problem)}.", f"See its trials: windlass study get {name}"
            ) from problem
        except MissingOptuna as problem:
            raise exit_codes.CliError(
                "Tuning needs Optuna, which is not installed.",
                "Install it: pip install 'windlass-platform[tuning]'",
            ) from problem


def _conclude(out: Output, outcome: StudyOutcome) -> None:
    counts = {
        "complete": outcome.count("complete"), "pruned": outcome.count("pruned"),
        "failed": outcome.count("failed"),
    }  # fmt: skip
    out.say(
        f"study/{outcome.name}: " + ", ".join(f"{count} {state}" for state, count in counts.items())
    )
    best = outcome.best_trials
    for each in best:
        out.say(f"best: trial {each.number}: {_values(each)} with {_params(each)}")
    out.result(
        {"name": outcome.name, "trials": counts, "best": [_plain(each) for each in best]},
        names=[f"study/{outcome.name}"],
    )
    if not best:
        raise exit_codes.CliError(
            f"No trial of study {outcome.name} is complete.",
            f"See why: windlass study get {outcome.name}",
        )


def _read(target: base.Target, name: str) -> tuple[Definition, list[Trial]]:
    from windlass.sdk.tuning import definition
    from windlass.sdk.tuning import trials as trial_records

    async def work(session: client_session.Session) -> tuple[dict[str, Any], list[Trial]]:
        path = f"{_path(session)}/{name}"
        found = await session.read(path, [])
        trials: list[Trial] = []
        while True:
            after = [("after", str(trials[-1].number))] if trials else []
            page = (await session.read(f"{path}/trials", after))["items"]
            trials += [trial_records.from_record(each) for each in page]
            if not page:
                return found["body"], trials

    body, trials = client_session.call(target, work)
    return definition.from_plain(body), trials


def _ordered(definition: Definition, trials: list[Trial]) -> list[Trial]:
    """Complete trials by their first value, then the others by number."""
    sign = -1 if definition.directions[0] == "maximize" else 1

    def place(trial: Trial) -> tuple[bool, float, int]:
        complete = trial.state == "complete" and trial.value is not None
        return (not complete, sign * (trial.value or 0.0) if complete else 0.0, trial.number)

    return sorted(trials, key=place)


def _path(session: client_session.Session) -> str:
    return f"{client_session.PLATFORM}/namespaces/{session.namespace}/studies"


def _values(trial: Trial) -> str:
    return " ".join(f"{each:.6g}" for each in trial.values or ()) or "-"


def _params(trial: Trial) -> str:
    shown = {
        key: f"{value:.6g}" if isinstance(value, float) else str(value)
        for key, value in trial.params.items()
    }
    return " ".join(f"{key}={value}" for key, value in shown.items())


def _plain(trial: Trial) -> dict[str, Any]:
    return {
        "number": trial.number, "state": trial.state, "values": trial.values,
        "params": trial.params, "run": trial.run, "message": trial.message,
    }  # fmt: skip


def _sentence(problem: Exception) -> str:
    text = str(problem)
    return text[:1].upper() + text[1:]
