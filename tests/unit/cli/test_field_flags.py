"""A refused value is named by its flag, as the user typed it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from tests.unit.cli.invoking import invoke
from windlass.cli.commands.jobs import submit
from windlass.cli.commands.sharing import queue
from windlass.cli.lib import exit_codes, quantities
from windlass.cli.lib.flags import field_flags
from windlass.cli.lib.jobs import job_options
from windlass.cli.lib.output import Output
from windlass.kinds import validate
from windlass.kinds.types import queue as queue_kind
from windlass.kinds.types import run

JOB = [
    (["-n", "A_b"], "--name A_b"),
    (["-w", "4", "--label", "a=b/c"], "--label a=b/c"),
    (["-c", "x"], "--cpus x"),
    (["-c", "-1"], "--cpus -1"),
    (["--shm", "8Gi"], "--shm 8Gi"),
    (["-g", "5000"], "--gpus 5000"),
    (["--gpu-model", "h100", "--gpu-model", "A_b", "-g", "1"], "--gpu-model A_b"),
    (["--device", "rdma=1", "--device", "R_x=1"], "--device R_x=1"),
    (["--device", "gpu=2000"], "--device gpu=2000"),
    (["--port", "ok=80", "--port", "web=99999"], "--port web=99999"),
    (["--port", "A_B=80"], "--port A_B=80"),
    (["--python", "3"], "--python 3"),
    (["-e", "A=1", "-e", "1x=2"], "--env 1x=2"),
    (["--env-secret", "A_b"], "--env-secret A_b"),
    (["--env-config", "A_b"], "--env-config A_b"),
    (["-v", "/x:/x", "-v", "zzz:x:/y"], "--mount zzz:x:/y"),
    (["--queue", "A_b"], "--queue A_b"),
    (["--topology", "A_b"], "--topology A_b"),
    (["--toleration", "a=b:Foo"], "--toleration a=b:Foo"),
    (["--expected", "x"], "--expected x"),
    (["--timeout", "0s"], "--timeout 0s"),
    (["--start-timeout", "x"], "--start-timeout x"),
    (["--ttl", "x"], "--ttl x"),
    (["--retry-on", "Failed", "--retry-on", "Foo"], "--retry-on Foo"),
    (["--output", "ok", "--output", "a\tb"], "--output a\tb"),
    (["--checkpoint", "x"], "--checkpoint x"),
    (["--signal", "FOO"], "--signal FOO"),
    (["--grace", "0s"], "--grace 0s"),
    (["-a", "-a=b"], "--annotation -a=b"),
]


def context_of(command: click.Command, *arguments: str) -> click.Context:
    return command.make_context("command", list(arguments), obj=Output("human"))


def refused(context: click.Context) -> exit_codes.CliError:
    """What the server would say about the job of a command line."""
    with context:
        flags = {name: context.params[name] for name in job_options._NAMES}
        value = job_options.wanted(job_options._read(flags))
        value["metadata"]["namespace"] = "default"
        faults = validate.validate(run.Run, validate.defaulted(run.Run, value))
        assert faults, "the server refuses it"
        return field_flags.refusal([(each.path, each.message) for each in faults], "Refused.")


@pytest.mark.parametrize(("argv", "typed"), JOB, ids=[case[1] for case in JOB])
def test_a_refused_value_of_a_job_is_named_by_its_flag(argv: list[str], typed: str) -> None:
    error = refused(context_of(submit.submit, *argv, "--", "true"))
    assert error.message == f"{typed} cannot be used."
    assert error.remedy
    assert "spec." not in error.remedy


def test_several_refused_values_are_listed_by_their_flags() -> None:
    error = refused(context_of(submit.submit, "-c", "x", "--ttl", "y", "--", "true"))
    first, second = error.remedy.splitlines()
    assert first.startswith("--cpus x: must be a quantity")
    assert second.startswith("--ttl y: must be a duration")


def test_a_field_of_a_file_keeps_its_name_and_line_beside_flags(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    assert invoke("init", file, "--", "true").code == 0
    file.write_text(file.read_text().replace('cpu: "1"', "cpu: few"))
    result = invoke("submit", "-f", file, "--timeout", "long", "--", "true")
    assert result.code == exit_codes.INVALID
    assert "spec.roles[0].resources.cpu: Invalid value" in result.err
    assert f"{file}:2" in result.err, "the line in the file"
    assert "--timeout long: must be a duration" in result.err


QUEUE: list[tuple[list[str], str]] = [
    (["--parent", "A_b"], "--parent A_b"),
    (["--guarantee", "gpu=1", "--guarantee", "cpu=x"], "--guarantee cpu=x"),
    (["--limit", "A_b=1"], "--limit A_b=1"),
    (["--guarantee", "cpu=1", "--lend", "cpu=2"], "--lend cpu=2"),
    (["--min-runtime", "x"], "--min-runtime x"),
    (["--half-life", "x"], "--half-life x"),
    (["--fair-share-preemption", "x"], "--fair-share-preemption x"),
    (["--user-limit", "ada:gpu=x"], "--user-limit ada:gpu=x"),
    (["--team", "A_b"], "--team A_b"),
]


@pytest.mark.parametrize(("argv", "typed"), QUEUE, ids=[case[1] for case in QUEUE])
def test_a_refused_value_of_a_queue_is_named_by_its_flag(argv: list[str], typed: str) -> None:
    with context_of(queue.create, "vision", *argv) as context:
        spec = quantities.spec(context.params)
        if context.params["namespaces"]:
            spec["namespaces"] = list(context.params["namespaces"])
        value = {"metadata": {"name": "vision"}, "spec": spec}
        faults = validate.validate(
            queue_kind.Queue, validate.defaulted(queue_kind.Queue, {**_HEAD, **value})
        )
        with pytest.raises(exit_codes.CliError) as caught:
            field_flags.checked(faults, "The queue is not valid.")
    assert caught.value.message == f"{typed} cannot be used."


_HEAD: dict[str, Any] = {"apiVersion": "windlass.dev/v1alpha1", "kind": "Queue"}


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--from", "+x", "--to", "+1h"], "--from +x cannot be used."),
        (["--from", "x", "--duration", "1h"], "--from x cannot be used."),
        (["--from", "now", "--duration", "x"], "--duration x cannot be used."),
        (["--schedule", "x", "--duration", "1h"], "--schedule x cannot be used."),
        (["--from", "now", "--duration", "1h", "--node", "A_b"], "--node A_b cannot be used."),
        (["--from", "now"], "It needs an end"),
    ],
)
def test_a_refused_value_of_a_reservation_is_named_by_its_flag(argv: list[str], told: str) -> None:
    nodes = [] if "--node" in argv else ["--node", "n1"]
    result = invoke("reservation", "create", "cooling", *argv, *nodes)
    assert result.code in (exit_codes.INVALID, exit_codes.USAGE)
    assert told in result.err
    assert '"from"' not in result.err


def test_a_flag_and_its_field_are_one_flag() -> None:
    text = "Name an existing queue with --queue (spec.queue), or have the queue created."
    with context_of(submit.submit, "--queue", "x", "--", "true"):
        assert field_flags.in_text(text) == text.replace(" (spec.queue)", "")


def test_a_sentence_about_a_job_names_the_flags_of_the_command() -> None:
    text = "spec.environment.image x: leave it out; use spec.environment.requirements."
    with context_of(submit.submit, "--image", "x", "--", "true"):
        assert field_flags.in_text(text) == "--image x: leave it out; use --requirements."
    with context_of(submit.submit, "-f", "run.yaml"):
        assert field_flags.in_text(text) == text
    assert field_flags.in_text(text) == text


def test_all_flags_that_the_server_checks_are_known() -> None:
    """A new flag needs a line of the table, or a reason in this list."""
    checked_here = {"command", "file", "role", "workdir", "workdir_limit"}
    known = {name for _, names in field_flags._FIELDS for name in names}
    patterns = " ".join(pattern for pattern, _ in field_flags._FIELDS)
    for name in job_options._NAMES:
        by_group = name in patterns or name.removeprefix("env_") in patterns
        assert name in checked_here or name in known or by_group, name
