"""The flags that describe a job, and the Run that is built from them; flags override a file.

Shared by `run`, `submit`, `cron create` and `init`. The option names are those of
`sdk.run_options`; each flag sets one field of the Run. Nothing here calls a server.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from windlass.cli.lib import exit_codes, quantities
from windlass.cli.lib.output import Output

Function = TypeVar("Function", bound=Callable[..., Any])

FRAMEWORKS = (
    "process", "torch", "mpi", "horovod", "tensorflow", "jax", "ray", "deepspeed", "spark", "flink",
)  # fmt: skip

SETTINGS = {
    "help_option_names": ["-h", "--help"],
    # All arguments after the user's command belong to it, flags included.
    "allow_interspersed_args": False,
    "ignore_unknown_options": False,
}
dry_run = click.option(
    "--dry-run", is_flag=True, help="Print the object and its expected start; submit nothing."
)
force = click.option(
    "--force", is_flag=True, help="Submit it even if this cluster can never run it."
)
replace = click.option(
    "--replace", is_flag=True, help="Delete an ended run of the same name first."
)


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """A job as the command line describes it."""

    command: tuple[str, ...]
    options: dict[str, Any]
    """As `sdk.run_options.Options`; only those that were given."""
    file: str = ""
    role: str = ""
    """The role of the file that flags about replicas change. Empty: the first."""
    workdir: str = ""
    workdir_limit: int | None = None
    """Bytes."""


def options(function: Function) -> Function:
    """Adds the flags; the command gets one `job`."""

    @functools.wraps(function)
    def with_job(*args: Any, **given: Any) -> Any:
        flags = {name: given.pop(name) for name in _NAMES}
        try:
            job = _read(flags)
        except exit_codes.CliError as problem:
            # Every other exit code of `run` is the job's own.
            if function.__name__ == "run" and problem.code != exit_codes.USAGE:
                problem.code = exit_codes.RUN_NOT_STARTED
            raise
        return function(*args, job=job, **given)

    decorated: Any = with_job
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def _option(*names: str, text: str, **how: Any) -> Callable[[Any], Any]:
    how.setdefault("default", None)
    return click.option(*names, help=text, **how)


def _many(*names: str, text: str, metavar: str) -> Callable[[Any], Any]:
    return click.option(*names, multiple=True, metavar=metavar, help=text)


_OPTIONS = (
    click.argument("command", nargs=-1, type=click.UNPROCESSED),
    _option("-f", "--file", metavar="FILE", text="A Run as YAML; flags override it."),
    _option("-n", "--name", text="Name of the run. [default: from the command]"),
    _option(
        "-w",
        "--workers",
        metavar="N|MIN..MAX",
        text="Number of replicas; a range makes it elastic.",
    ),
    _option("--role", text="Role of FILE that the flags change. [default: the first]"),
    _option("--framework", type=click.Choice(FRAMEWORKS), text="How replicas find each other."),
    # resources of each replica
    _option("-c", "--cpus", text="CPU cores per replica: 2, 500m. [default: 1]"),
    _option("-m", "--memory", text="Memory per replica: 4Gi. [default: 1Gi]"),
    _option("--shm", text="Size of /dev/shm, part of the memory: 2Gi. [default: half of it]"),
    _option("--disk", text="Disk per replica for files that go with it: 20Gi. [default: node's]"),
    _option("-g", "--gpus", metavar="N", text="GPUs per replica."),
    _option("--share", metavar="1/N", text="A share of one GPU instead of --gpus: 1/4."),
    _many(
        "--gpu-model", metavar="MODEL", text="Accepted GPU model, best first. Alone: one GPU of it."
    ),
    _many("--device", metavar="KIND[=N][:MODEL]", text="Other devices per replica: rdma=1."),
    _many(
        "--output",
        metavar="PATH[:WHEN]",
        text="Files to collect and keep with the run: out, '*.pt'; WHEN: end, failure, checkpoint.",
    ),
    _many("--port", metavar="NAME=PORT", text="A port that replicas listen on."),
    # software, code and data
    _option("--workdir", metavar="DIR", text="Folder to upload, without what .gitignore names."),
    _option("--workdir-limit", metavar="SIZE", text="Maximum size of the folder. [default: 512Mi]"),
    _option("--image", text="Container image (Kubernetes engine)."),
    _option("--python", metavar="VERSION", text="Python version of the environment: 3.11."),
    _many(
        "-r",
        "--requirements",
        metavar="FILE|PACKAGE",
        text="Python package, or a requirements file.",
    ),
    _option("--setup", metavar="SCRIPT", text="Shell script that runs once before the command."),
    _many(
        "-e", "--env", metavar="NAME=VALUE", text="Environment variable; NAME alone copies yours."
    ),
    _many("--env-secret", metavar="SECRET", text="All values of a Secret as variables."),
    _many("--env-config", metavar="CONFIG", text="All values of a ConfigMap as variables."),
    _many(
        "-v",
        "--mount",
        metavar="SOURCE:PATH[:ro]",
        text="claim:NAME:/data, host:/x:/x:ro, "
        "config:NAME:/etc/x, secret:NAME:/s, or /x:/x for a path of the node.",
    ),
    # the queue
    _option("--queue", text="Queue. [default: the queue of the namespace]"),
    _option("-p", "--priority", type=click.IntRange(0, 1000), text="Higher first. [default: 50]"),
    _option("--preemptible/--no-preemptible", text="May be stopped to return borrowed quota."),
    _option("--suspend", is_flag=True, text="Submit it suspended, until `resume`."),
    _many(
        "--after",
        metavar="RUN[:ok|any|failed]",
        text="Start after RUN has succeeded, ended, or failed. [default: ok]",
    ),
    _option(
        "--array",
        metavar="INDICES[%N]",
        text="Run it once for each index, at most N at a time: 0-99%8, 0-99:2, 1,4,7.",
    ),
    # where
    _option("--gang/--no-gang", text="Start all replicas together or none. [default: gang]"),
    _option(
        "--movable/--no-movable",
        text="May be restarted on other nodes so that a waiting run fits. [default: no]",
    ),
    _option(
        "--pack",
        type=click.Choice(("binpack", "spread", "fragmentation")),
        text="Placement policy.",
    ),
    _option(
        "--topology",
        metavar="LEVEL[!]",
        text="Keep replicas in one rack, zone ...; with ! wait until they fit into one.",
    ),
    _many("--selector", metavar="KEY=VALUE", text="Label that nodes must have."),
    _many("--toleration", metavar="KEY[=VALUE][:EFFECT]", text="Tolerated taint; * tolerates all."),
    # time and failures
    _option("--expected", metavar="TIME", text="Expected duration: 2h. Allows backfill."),
    _option("--timeout", metavar="TIME", text="Maximum duration of an attempt: 12h."),
    _option("--start-timeout", metavar="TIME", text="Time in which all replicas must start."),
    _option("--ttl", metavar="TIME", text="Delete the record this long after the end: 1h."),
    _option(
        "--retries", type=click.IntRange(0, 1000), text="Maximum number of retries. [default: 3]"
    ),
    _many("--retry-on", metavar="CAUSE", text="Cause to retry: NodeLost, Preempted or Failed."),
    _option(
        "--restart",
        type=click.Choice(("pod", "role", "run")),
        text="What restarts when a replica fails.",
    ),
    _option("--resize", type=click.Choice(("restart", "live")), text="How an elastic run resizes."),
    _option("--checkpoint", metavar="PATH", text="Folder of the checkpoints."),
    _option("--signal", text="Signal to checkpoint and exit. [default: SIGTERM]"),
    _option("--grace", metavar="TIME", text="Time from the signal to SIGKILL. [default: 30s]"),
    # metadata
    _many("-l", "--label", metavar="KEY=VALUE", text="Label of the run and its pods."),
    _many("-a", "--annotation", metavar="KEY=VALUE", text="Annotation of the run and its pods."),
)
_NAMES = (
    "command", "file", "name", "workers", "role", "framework", "cpus", "memory", "shm", "disk",
    "gpus", "share", "gpu_model", "device", "output", "port", "workdir", "workdir_limit", "image",
    "python",
    "requirements", "setup",
    "env", "env_secret", "env_config", "mount", "queue", "priority", "preemptible", "suspend",
    "after", "array",
    "gang", "movable", "pack", "topology", "selector", "toleration", "expected", "timeout",
    "start_timeout", "ttl", "retries", "retry_on", "restart", "resize", "checkpoint", "signal",
    "grace", "label", "annotation",
)  # fmt: skip
_SAME = (
    "name", "framework", "cpus", "memory", "shm", "disk", "image", "python", "setup", "queue",
    "priority", "preemptible", "gang", "movable", "pack", "topology", "expected", "timeout",
    "start_timeout", "retries",
    "restart", "resize", "checkpoint", "signal", "grace",
)  # fmt: skip
"""Flags with the names of the SDK's options."""


def _read(flags: dict[str, Any]) -> Job:
    given: dict[str, Any] = {name: flags[name] for name in _SAME}
    if given["framework"] == "horovod":
        given["framework"] = "mpi"
    given |= _workers(flags["workers"]) | _gpus(flags)
    for name in ("memory", "shm", "disk"):
        quantities.check_memory(f"--{name}", given[name])
    given["suspend"] = flags["suspend"] or None
    given["keep"] = flags["ttl"]
    given["after"] = [_after(each) for each in flags["after"]]
    given["array"] = _array(flags["array"])
    given["requirements"] = [line for each in flags["requirements"] for line in _required(each)]
    given["env"] = environment(flags["env"])
    given["secrets"], given["configs"] = flags["env_secret"], flags["env_config"]
    given["mounts"] = dict(_mount(each) for each in flags["mount"])
    given["nodes"] = _pairs("--selector", flags["selector"])
    given["outputs"] = flags["output"]
    given["tolerations"], given["retry_on"] = flags["toleration"], flags["retry_on"]
    given["labels"] = _pairs("--label", flags["label"])
    given["annotations"] = _pairs("--annotation", flags["annotation"])
    given["ports"] = {name: _number("--port", f"{name}={port}", port)
                      for name, port in _pairs("--port", flags["port"]).items()}  # fmt: skip
    if flags["workdir"] and not os.path.isdir(flags["workdir"]):
        raise exit_codes.CliError(
            f"--workdir {flags['workdir']}: the folder does not exist.",
            "Check the path; `--workdir .` uploads the current folder.",
            exit_codes.NOT_FOUND,
        )
    chosen = {key: value for key, value in given.items() if value not in (None, "", {}, [], ())}
    return Job(
        tuple(flags["command"]), chosen, flags["file"] or "", flags["role"] or "",
        flags["workdir"] or "", _size("--workdir-limit", flags["workdir_limit"]),
    )  # fmt: skip


def hint_missing_workdir(out: Output, job: Job) -> None:
    """Prints a hint if the command names a file of the current folder, which the job does not have
    without --workdir."""
    if job.workdir or job.file or "image" in job.options:
        return
    named = (word for word in job.command[:4] if not os.path.isabs(word) and os.path.isfile(word))
    if file := next(named, ""):
        out.hint(
            f"The job does not have {file} of this folder; use --workdir . to upload the folder."
        )


def require_command(job: Job) -> None:
    if not job.command and not job.file:
        raise exit_codes.CliError(
            "No command was given.",
            "Write it after two dashes: windlass run -- python train.py; or give -f FILE.",
            exit_codes.USAGE,
        )


def wanted(job: Job) -> dict[str, Any]:
    """The Run as a plain object. A file is validated here, because the server does not know its
    lines; the server validates the flags."""
    from windlass.sdk import run_builder

    require_command(job)
    built = run_builder.build(job.command or ("true",), **job.options)
    value = _plain(built)
    if not job.file:
        return value
    from windlass.cli.lib import manifests
    from windlass.kinds.types import run as kind

    document = _over_file(job, built, value)
    metadata = {"namespace": "default", **document.data["metadata"]}
    placed = dataclasses.replace(document, data={**document.data, "metadata": metadata})
    manifests.check([(kind.Run, placed)])
    found: dict[str, Any] = document.data
    return found


def _plain(built: Any) -> dict[str, Any]:
    """As `codec.to_dict` for an object that was built here; faster, because commands must start
    quickly."""
    import msgspec

    value = {"apiVersion": built.resource.api_version, "kind": built.resource.kind}
    return _without_nothing({**value, **msgspec.to_builtins(built)})  # type: ignore[no-any-return]


def _without_nothing(value: Any) -> Any:
    if isinstance(value, dict):
        inner = {key: _without_nothing(item) for key, item in value.items()}
        return {key: item for key, item in inner.items() if item not in (None, {})}
    return [_without_nothing(item) for item in value] if isinstance(value, list) else value


# --- a file under the flags -----------------------------------------------------------------------


def _over_file(job: Job, built: Any, flags: dict[str, Any]) -> Any:
    """The file's document, overridden by the flags."""
    from windlass.cli.lib import manifests

    documents = [each for each in manifests.read_all((job.file,)) if each.data.get("kind") == "Run"]
    if len(documents) != 1:
        raise exit_codes.CliError(
            f"{job.file} contains {len(documents)} runs; this command takes exactly one.",
            "Submit several runs with: windlass apply -f FILE",
            exit_codes.INVALID,
        )
    document = documents[0]
    value = document.data
    if "gpu_models" in job.options and "gpus" not in job.options:
        raise exit_codes.CliError(
            f"--gpu-model needs --gpus or --share here, because {job.file} may request other GPUs.",
            "Give the number, too: --gpus 1.",
            exit_codes.USAGE,
        )
    metadata, spec = value.setdefault("metadata", {}), value.setdefault("spec", {})
    over = _explicit(job, built, flags)
    role = over["spec"].pop("roles")[0]
    if "name" in job.options or not (metadata.get("name") or metadata.get("generateName")):
        metadata["name"] = built.metadata.name
    for part in ("labels", "annotations"):
        _merge(metadata, {part: over["metadata"].get(part)})
    _merge(spec, over["spec"])
    target = _role(job, spec)
    if not job.command:
        role.pop("command", None)
    role.pop("name", None)
    _merge(target, role)
    return document


def _role(job: Job, spec: dict[str, Any]) -> dict[str, Any]:
    roles = spec.setdefault("roles", [{}])
    if not isinstance(roles, list) or not all(isinstance(each, dict) for each in roles):
        return {}
    if not job.role:
        return roles[0] if roles else {}
    for each in roles:
        if each.get("name", "worker") == job.role:
            found: dict[str, Any] = each
            return found
    names = ", ".join(str(each.get("name", "worker")) for each in roles)
    raise exit_codes.CliError(
        f"{job.file} has no role {job.role!r}.", f"It has: {names}.", exit_codes.NOT_FOUND
    )


_PLACES = {
    "priority": ("spec", "priority"),
    "preemptible": ("spec", "preemptible"),
    "restart": ("spec", "restart"),
    "framework": ("spec", "framework"),
    "gang": ("spec", "placement", "gang"),
    "movable": ("spec", "placement", "movable"),
    "pack": ("spec", "placement", "pack"),
    "retries": ("spec", "retries", "limit"),
    "signal": ("spec", "checkpoint", "signal"),
    "grace": ("spec", "checkpoint", "grace"),
}
_ROLE_PLACES = {
    "workers": ("replicas",),
    "cpus": ("resources", "cpu"),
    "memory": ("resources", "memory"),
    "shm": ("resources", "shm"),
    "disk": ("resources", "disk"),
    "resize": ("resize",),
}


def _explicit(job: Job, built: Any, flags: dict[str, Any]) -> dict[str, Any]:
    """The object of the flags, with given values that equal the default: they override the file."""
    for word, path in _PLACES.items():
        if word in job.options:
            _put(flags, path, built)
    for word, path in _ROLE_PLACES.items():
        if word in job.options:
            _put(flags["spec"]["roles"][0], path, built.spec.roles[0])
    return flags


def _put(into: dict[str, Any], path: tuple[str, ...], source: Any) -> None:
    for name in path[:-1]:
        into, source = into.setdefault(name, {}), getattr(source, name)
    into[path[-1]] = getattr(source, path[-1])


def _merge(into: dict[str, Any], over: dict[str, Any]) -> None:
    for key, value in over.items():
        if value is None:
            continue
        have = into.get(key)
        if isinstance(value, dict) and isinstance(have, dict):
            _merge(have, value)
        else:
            into[key] = value


# --- single flags ---------------------------------------------------------------------------------


def environment(given: Iterable[str]) -> dict[str, str]:
    found = {}
    for entry in given:
        name, equals, value = entry.partition("=")
        if not equals and name not in os.environ:
            raise exit_codes.CliError(
                f"--env {name} copies your variable {name}, but it is not set.",
                f"Set it, or write --env {name}=VALUE.",
                exit_codes.USAGE,
            )
        found[name] = value if equals else os.environ[name]
    return found


def _workers(text: str | None) -> dict[str, int]:
    if text is None:
        return {}
    least, dots, most = text.partition("..")
    try:
        numbers = [int(part) for part in ((least, most) if dots else (least,))]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1 or max(numbers) > 4096 or numbers != sorted(numbers):
        raise _wrong("--workers", text, "a number such as 4, or a range such as 2..8")
    return {"workers": numbers[-1], **({"min_workers": numbers[0]} if dots else {})}


def _gpus(flags: dict[str, Any]) -> dict[str, Any]:
    gpus, share = flags["gpus"], flags["share"]
    if gpus and share:
        raise exit_codes.CliError(
            "--gpus and --share cannot be combined.",
            "A share is a part of one GPU: give --share 1/4 alone.",
            exit_codes.USAGE,
        )
    if gpus is not None and not gpus.isdigit():
        raise _wrong("--gpus", gpus, "a whole number; parts of one are given with --share 1/4")
    if share is not None and not _is_fraction(share):
        raise _wrong("--share", share, "a part of one device, such as 1/4")
    if flags["gpu_model"] and gpus is not None and int(gpus) == 0:
        raise exit_codes.CliError(
            "--gpu-model needs a GPU, and --gpus 0 asks for none.",
            "Leave out --gpu-model, or ask for at least one GPU.",
            exit_codes.USAGE,
        )
    options: dict[str, Any] = {"gpus": share or gpus, "gpu_models": list(flags["gpu_model"])}
    devices: dict[str, int] = {}
    for entry in flags["device"]:
        pair, _, model = entry.partition(":")
        kind, equals, count = pair.partition("=")
        number = _number("--device", entry, count) if equals else 1
        if kind == "gpu":
            options["gpus"] = str(number)
        else:
            devices[kind] = number
        if model:
            if kind != "gpu":
                raise _wrong("--device", entry, "KIND or KIND=N; only gpu takes a model")
            options["gpu_models"] += model.split(",")
    return {**options, "devices": devices}


def _after(entry: str) -> str:
    name, colon, when = entry.partition(":")
    if not name or (colon and when not in ("ok", "any", "failed")):
        raise _wrong("--after", entry, "RUN, RUN:ok, RUN:any or RUN:failed")
    return entry


def _array(text: str | None) -> str | None:
    from windlass.kinds.values import index_set

    if text is None:
        return None
    try:
        index_set.parse_array(index_set.split_limit(text)[0])
    except ValueError as problem:
        raise exit_codes.CliError(
            f"--array {text} cannot be used: {problem}.",
            "Write 0-99, 0-99%8, 0-99:2 or 1,4,7.",
            exit_codes.USAGE,
        ) from None
    return text


def _is_fraction(text: str) -> bool:
    above, slash, below = text.partition("/")
    return bool(slash) and above.isdigit() and below.isdigit() and 0 < int(above) < int(below)


def _mount(entry: str) -> tuple[str, str]:
    parts = entry.split(":")
    mode = parts.pop() if len(parts) > 2 and parts[-1] in ("ro", "rw") else ""
    path = parts.pop() if len(parts) > 1 else ""
    source = ":".join(parts)
    if source.startswith("/"):
        source = f"host:{source}"
    if not path.startswith("/") or ":" not in source:
        raise _wrong("--mount", entry, "SOURCE:PATH[:ro], such as claim:imagenet:/data or /x:/x")
    return path, f"{source}:{mode}" if mode else source


def _required(entry: str) -> list[str]:
    """A requirements file's lines, or the package itself."""
    is_file = entry.endswith((".txt", ".in")) or os.sep in entry
    if not is_file:
        return [entry]
    try:
        with open(entry, encoding="utf-8") as file:
            lines = [line.split(" #")[0].strip() for line in file]
    except OSError as problem:
        raise exit_codes.CliError(
            f"The requirements file {entry} cannot be read: {problem.strerror}.",
            "Check the path; a package is named without a folder: -r numpy",
            exit_codes.NOT_FOUND,
        ) from None
    return [line for line in lines if line and not line.startswith("#")]


def _pairs(flag: str, entries: Iterable[str]) -> dict[str, str]:
    found = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key:
            raise _wrong(flag, entry, "KEY=VALUE")
        found[key] = value
    return found


def _number(flag: str, entry: str, text: str) -> int:
    if not text.isdigit():
        raise _wrong(flag, entry, f"a whole number instead of {text!r}")
    return int(text)


def _size(flag: str, text: str | None) -> int | None:
    from windlass.kinds.values import quantity

    try:
        return None if text is None else quantity.whole(text)
    except ValueError:
        raise _wrong(flag, str(text), "a size such as 2Gi") from None


def _wrong(flag: str, value: str, right: str) -> exit_codes.CliError:
    return exit_codes.CliError(
        f"{flag} {value} cannot be used.", f"Write {right}.", exit_codes.USAGE
    )
