"""Flags of a job: each has one place in the Run, a file lies under them, mistakes get messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.invoking import invoke
from windlass.cli.lib import exit_codes
from windlass.cli.lib.jobs import job_options
from windlass.cli.lib.output import Output

FILE = """\
apiVersion: windlass.dev/v1alpha1
kind: Run
metadata: {name: base, labels: {team: a}}
spec:
  priority: 90
  roles:
  - name: driver
    command: [python, driver.py]
  - name: worker
    replicas: 4
    command: [python, worker.py]
    resources: {cpu: "2"}
"""


def run(*arguments: str) -> dict[str, Any]:
    """The Run that a command line stands for."""
    found: list[dict[str, Any]] = []

    import click

    @click.command(context_settings={"allow_interspersed_args": False})
    @job_options.options
    def command(job: job_options.Job) -> None:
        found.append(job_options.wanted(job))

    command.main(list(arguments), standalone_mode=False)
    return json.loads(json.dumps(found[0]))


PLACES: list[tuple[list[str], str, Any]] = [
    (["-n", "x"], "metadata.name", "x"),
    (["-w", "4"], "spec.roles.0.replicas", 4),
    (["-w", "2..4"], "spec.roles.0.minReplicas", 2),
    (["--framework", "horovod"], "spec.framework", "mpi"),
    (["-c", "2"], "spec.roles.0.resources.cpu", "2"),
    (["-m", "4Gi"], "spec.roles.0.resources.memory", "4Gi"),
    (["--shm", "256Mi"], "spec.roles.0.resources.shm", "256Mi"),
    (["-g", "2"], "spec.roles.0.devices.0.count", 2),
    (["--share", "1/4"], "spec.roles.0.devices.0.share", "1/4"),
    (
        ["--gpu-model", "h100"],
        "spec.roles.0.devices",
        [{"kind": "gpu", "count": 1, "models": ["h100"]}],
    ),
    (["--device", "rdma=2"], "spec.roles.0.devices.0.kind", "rdma"),
    (["--device", "gpu=2:h100,a100"], "spec.roles.0.devices.0.models", ["h100", "a100"]),
    (["--image", "i"], "spec.environment.image", "i"),
    (["--python", "3.11"], "spec.environment.python", "3.11"),
    (["-r", "numpy"], "spec.environment.requirements", ["numpy"]),
    (["--setup", "echo"], "spec.environment.setup", "echo"),
    (["-e", "A=1=2"], "spec.roles.0.env.A", "1=2"),
    (["--env-secret", "s"], "spec.roles.0.envFrom.0.secret", "s"),
    (["-v", "claim:data:/data:ro"], "spec.mounts.0.from", "claim:data"),
    (["-v", "/x:/y"], "spec.mounts.0.from", "host:/x"),
    (["--queue", "q"], "spec.queue", "q"),
    (["-p", "80"], "spec.priority", 80),
    (["--no-preemptible"], "spec.preemptible", False),
    (["--no-gang"], "spec.placement.gang", False),
    (["--movable"], "spec.placement.movable", True),
    (["--pack", "spread"], "spec.placement.pack", "spread"),
    (["--topology", "rack!"], "spec.placement.topology.mode", "required"),
    (["--selector", "disk=ssd"], "spec.placement.nodes.selector.disk", "ssd"),
    (["--toleration", "spot"], "spec.placement.nodes.tolerations.0.operator", "Exists"),
    (["--expected", "2h"], "spec.duration.expected", "2h"),
    (["--timeout", "2h"], "spec.duration.max", "2h"),
    (["--start-timeout", "2h"], "spec.duration.start", "2h"),
    (["--ttl", "7d"], "spec.ttlAfterFinished", "7d"),
    (["--retries", "5"], "spec.retries.limit", 5),
    (["--retry-on", "Failed"], "spec.retries.causes", ["Failed"]),
    (["--restart", "pod"], "spec.restart", "pod"),
    (["--checkpoint", "/c"], "spec.checkpoint.path", "/c"),
    (["--grace", "2m"], "spec.checkpoint.grace", "2m"),
    (["--suspend"], "spec.suspend", True),
    (["--after", "prep"], "spec.after", [{"run": "prep"}]),
    (["--after", "prep:any"], "spec.after.0.when", "any"),
    (["--array", "0-99:2%8"], "spec.array.parallelism", 8),
    (["--array", "1,4"], "spec.array.indices", "1,4"),
    (["-l", "a=b"], "metadata.labels.a", "b"),
    (["-a", "a=b"], "metadata.annotations.a", "b"),
]


@pytest.mark.parametrize(("flags", "path", "value"), PLACES, ids=str)
def test_each_flag_has_its_place(flags: list[str], path: str, value: Any) -> None:
    found: Any = run(*flags, "--", "python", "train.py")
    assert found["spec"]["roles"][0]["command"] == ["python", "train.py"]
    for step in path.split("."):
        found = found[int(step)] if isinstance(found, list) else found[step]
    assert found == value


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--after", "prep:good"], "--after prep:good cannot be used"),
        (["--after", ":ok"], "--after :ok cannot be used"),
        (["--array", "9-3"], "--array 9-3 cannot be used: the range 9-3 is empty"),
        (["--array", "0-9%"], "is not a limit"),
        (["--array", "0-20000"], "at most 10000"),
    ],
)
def test_wrong_dependencies_and_indices_are_named(flags: list[str], problem: str) -> None:
    with pytest.raises(exit_codes.CliError, match=problem) as refused:
        run(*flags, "--", "true")
    assert refused.value.code == exit_codes.USAGE


def test_flags_lie_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(FILE)
    plain = run("-f", str(file))
    assert plain["metadata"]["name"] == "base"
    assert [role["name"] for role in plain["spec"]["roles"]] == ["driver", "worker"]
    over = run(
        "-f", str(file), "-n", "other", "-p", "50", "--role", "worker", "-w", "1", "-c", "1",
        "-l", "x=y", "--", "sh", "x.sh",
    )  # fmt: skip
    with pytest.raises(exit_codes.CliError, match="--gpu-model needs --gpus or --share here"):
        run("-f", str(file), "--gpu-model", "h100")
    driver, worker = over["spec"]["roles"]
    assert over["metadata"]["name"] == "other"
    assert over["metadata"]["labels"] == {"team": "a", "x": "y"}
    assert over["spec"]["priority"] == 50, "said, although it is the default"
    assert driver["command"] == ["python", "driver.py"]
    assert (worker["replicas"], worker["resources"]["cpu"]) == (1, "1")
    assert worker["command"] == ["sh", "x.sh"]


def test_a_file_of_init_can_be_submitted_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "hello.yaml"
    assert invoke("init", file).code == exit_codes.OK
    assert run("-f", str(file))["metadata"]["generateName"] == "hello-"
    again = invoke("init", file)
    assert again.code == exit_codes.CONFLICT
    assert "--force" in again.err
    named = invoke("init", "-", "-n", "mine", "--", "python", "a b.py")
    (tmp_path / "n.yaml").write_text(named.out)
    made = run("-f", str(tmp_path / "n.yaml"))
    assert made["metadata"]["generateName"] == "mine-"
    assert made["spec"]["roles"][0]["command"] == ["python", "a b.py"]


def test_requirements_come_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("numpy  # for arrays\n\n# no\nrich>=13\n")
    found = run("-r", str(file), "--", "x")["spec"]["environment"]["requirements"]
    assert found == ["numpy", "rich>=13"]


WRONG = [
    (["-w", "x"], exit_codes.USAGE, "2..8"),
    (["-w", "5..2"], exit_codes.USAGE, "2..8"),
    (["-g", "1/2"], exit_codes.USAGE, "--share"),
    (["-g", "1", "--share", "1/2"], exit_codes.USAGE, "cannot be combined"),
    (["--gpu-model", "h100", "-g", "0"], exit_codes.USAGE, "Leave out --gpu-model"),
    (["-m", "4"], exit_codes.USAGE, "--memory 4 is 4 bytes.\n  Did you mean 4Gi?"),
    (["-m", "4GB"], exit_codes.USAGE, "Did you mean 4G or 4Gi?"),
    (["-m", "512"], exit_codes.USAGE, "Did you mean 512Mi?"),
    (["--shm", "2"], exit_codes.USAGE, "--shm 2 is 2 bytes."),
    (["-v", "foo"], exit_codes.USAGE, "claim:imagenet:/data"),
    (["-l", "foo"], exit_codes.USAGE, "KEY=VALUE"),
    (["-e", "NOT_SET_ANYWHERE"], exit_codes.USAGE, "NOT_SET_ANYWHERE=VALUE"),
    (["-r", "./none.txt"], exit_codes.NOT_FOUND, "-r numpy"),
    (["--workdir", "/none"], exit_codes.NOT_FOUND, "--workdir ."),
    (["-f", "none.yaml"], exit_codes.NOT_FOUND, "none.yaml"),
]


@pytest.mark.parametrize(("flags", "code", "remedy"), WRONG, ids=str)
def test_a_wrong_flag_is_one_sentence_with_the_remedy(
    flags: list[str], code: int, remedy: str
) -> None:
    result = invoke("submit", *flags, "--", "true", env={"KUBECONFIG": "/nonexistent"})
    assert result.code == code
    assert result.err.startswith("error: ")
    assert remedy in result.err
    assert "Traceback" not in result.err
    assert result.out == ""


def test_a_file_with_mistakes_names_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(FILE.replace("replicas: 4", "replicas: 0").replace("priority", "priorty"))
    result = invoke("run", "-f", file, env={"KUBECONFIG": "/nonexistent"})
    assert result.code == exit_codes.RUN_NOT_STARTED
    assert f"{file}:5" in result.err
    assert f"{file}:10" in result.err


def test_a_local_file_without_workdir_gives_a_hint(tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    job_options.hint_missing_workdir(Output(), job_options.Job(("python", "train.py"), {}))
    assert "--workdir ." in capsys.readouterr().err
    job_options.hint_missing_workdir(
        Output(), job_options.Job(("python", "train.py"), {}, workdir=".")
    )
    job_options.hint_missing_workdir(Output(), job_options.Job(("python", "-c", "print(1)"), {}))
    assert capsys.readouterr().err == ""


def test_counts_of_an_array_are_not_printed_with_each_index(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from windlass.cli.lib.jobs import log_output
    from windlass.kinds.types import meta
    from windlass.kinds.types import run as kind

    narrator = log_output.Narrator(Output("human"), "sweep")
    for phase, message in (("Running", "0 of 9"), ("Running", "1 of 9"), ("Failed", "9 of 9")):
        spec = kind.RunSpec(
            roles=[kind.Role(command=["true"])], array=kind.Array(indices="0-8", parallelism=1)
        )
        status = kind.RunStatus(phase=phase, reason="Why", message=message)
        narrator(kind.Run(metadata=meta.ObjectMeta(name="sweep"), spec=spec, status=status))
    assert capsys.readouterr().err.splitlines() == [
        "run/sweep Running: Why (0 of 9)", "run/sweep Failed: Why (9 of 9)",
    ]  # fmt: skip
