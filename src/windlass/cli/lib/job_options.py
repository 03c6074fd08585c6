"""The flags that describe a job, and how a Run comes of them: a file first, flags over it.

Shared by `run`, `submit`, `cron create` and `init`. The words are those of `sdk.options`; each
flag has one place in the Run object. Nothing here asks a server.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from windlass.cli import exits
from windlass.cli.output import Output

Function = TypeVar("Function", bound=Callable[..., Any])

FRAMEWORKS = (
    "process", "torch", "mpi", "horovod", "tensorflow", "jax", "ray", "deepspeed", "spark", "flink",
)  # fmt: skip

SETTINGS = {
    "help_option_names": ["-h", "--help"],
    # What follows the first word of the user's command is his, flags included.
    "allow_interspersed_args": False,
    "ignore_unknown_options": False,
}
dry_run = click.option(
    "--dry-run", is_flag=True, help="Show the object, the plan and the expected start; do nothing."
)
force = click.option(
    "--force", is_flag=True, help="Hand it in even if nothing here could ever run it."
)


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What a command line says of a job."""

    command: tuple[str, ...]
    words: dict[str, Any]
    """As of `sdk.options.Options`; only what was said."""
    file: str = ""
    role: str = ""
    """The role of the file that flags about members change. Empty: the first."""
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
        except exits.CliError as problem:
            # Of `run` any other code would be the job's own.
            if function.__name__ == "run" and problem.code != exits.USAGE:
                problem.code = exits.RUN_NOT_STARTED
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
    _option("-w", "--workers", metavar="N|MIN..MAX", text="Members; a range makes it elastic."),
    _option("--role", text="Role of FILE that flags about members change. [default: the first]"),
    _option("--framework", type=click.Choice(FRAMEWORKS), text="How members find each other."),
    # what each member holds
    _option("-c", "--cpus", text="Cores of each: 2, 500m. [default: 1]"),
    _option("-m", "--memory", text="Memory of each: 4Gi. [default: 1Gi]"),
    _option("--shm", text="Size of /dev/shm, part of the memory: 2Gi. [default: half of it]"),
    _option("-g", "--gpus", metavar="N", text="GPUs of each."),
    _option("--share", metavar="1/N", text="A share of one GPU instead: 1/4."),
    _many("--gpu-model", metavar="MODEL", text="A model that will do, best first."),
    _many("--device", metavar="KIND[=N][:MODEL]", text="Other devices of each: rdma=1."),
    _many("--port", metavar="NAME=PORT", text="A port that members listen on."),
    # software, code and data
    _option("--workdir", metavar="DIR", text="Folder to send along, by .gitignore."),
    _option("--workdir-limit", metavar="SIZE", text="It may be this large. [default: 512Mi]"),
    _option("--image", text="Container image, where the engine runs images."),
    _option("--python", metavar="VERSION", text="Python of the environment: 3.11."),
    _many("-r", "--requirements", metavar="FILE|PACKAGE", text="Packages, or a requirements file."),
    _option("--setup", metavar="SCRIPT", text="Shell script that runs once before the command."),
    _many("-e", "--env", metavar="NAME=VALUE", text="Variable; a bare NAME passes on your own."),
    _many("--env-secret", metavar="SECRET", text="All values of a Secret as variables."),
    _many("--env-config", metavar="CONFIG", text="All values of a ConfigMap as variables."),
    _many("-v", "--mount", metavar="SOURCE:PATH[:ro]", text="claim:NAME:/data, host:/x:/x:ro, "
          "config:NAME:/etc/x, secret:NAME:/s, or /x:/x for a path of the node."),
    # the queue
    _option("--queue", text="Queue. [default: the namespace's own]"),
    _option("-p", "--priority", type=click.IntRange(0, 1000), text="Higher first. [default: 50]"),
    _option("--preemptible/--no-preemptible", text="May be stopped to give back lent room."),
    _option("--suspend", is_flag=True, text="Hand it in, but hold it."),
    # where
    _option("--gang/--no-gang", text="All members start together, or none. [default: gang]"),
    _option("--movable/--no-movable", text="May be stopped and started elsewhere so that a "
            "waiting run fits. [default: no]"),
    _option("--pack", type=click.Choice(("binpack", "spread", "fragmentation")), text="How nodes "
            "are filled."),
    _option("--topology", metavar="LEVEL[!]", text="Keep members in one rack, zone ...; with ! "
            "wait rather than spread."),
    _many("--selector", metavar="KEY=VALUE", text="A label that nodes must have."),
    _many("--toleration", metavar="KEY[=VALUE][:EFFECT]", text="A taint that is accepted; * all."),
    # time and trouble
    _option("--expected", metavar="TIME", text="Your estimate: 2h. Lets it fit into gaps."),
    _option("--timeout", metavar="TIME", text="Running longer ends the attempt: 12h."),
    _option("--start-timeout", metavar="TIME", text="All members must run this soon."),
    _option("--ttl", metavar="TIME", text="Delete the record so long after the end: 1h."),
    _option("--retries", type=click.IntRange(0, 1000), text="Further attempts, at most. "
            "[default: 3]"),
    _many("--retry-on", metavar="CAUSE", text="NodeLost, Preempted or Failed."),
    _option("--restart", type=click.Choice(("pod", "role", "run")), text="What starts again when "
            "a member fails."),
    _option("--resize", type=click.Choice(("restart", "live")), text="How an elastic run changes."),
    _option("--checkpoint", metavar="PATH", text="Where checkpoints lie."),
    _option("--signal", text="Asks for a checkpoint and an end. [default: SIGTERM]"),
    _option("--grace", metavar="TIME", text="Between that signal and SIGKILL. [default: 30s]"),
    # names for it
    _many("-l", "--label", metavar="KEY=VALUE", text="Label of the run and its pods."),
    _many("-a", "--annotation", metavar="KEY=VALUE", text="Annotation of the run and its pods."),
)  # fmt: skip
_NAMES = (
    "command", "file", "name", "workers", "role", "framework", "cpus", "memory", "shm", "gpus",
    "share", "gpu_model", "device", "port", "workdir", "workdir_limit", "image", "python",
    "requirements", "setup",
    "env", "env_secret", "env_config", "mount", "queue", "priority", "preemptible", "suspend",
    "gang", "movable", "pack", "topology", "selector", "toleration", "expected", "timeout",
    "start_timeout", "ttl", "retries", "retry_on", "restart", "resize", "checkpoint", "signal",
    "grace", "label", "annotation",
)  # fmt: skip
_SAME = (
    "name", "framework", "cpus", "memory", "shm", "image", "python", "setup", "queue", "priority",
    "preemptible", "gang", "movable", "pack", "topology", "expected", "timeout", "start_timeout",
    "retries",
    "restart", "resize", "checkpoint", "signal", "grace",
)  # fmt: skip
"""Flags that are words of the SDK as they are."""


def _read(flags: dict[str, Any]) -> Job:
    words: dict[str, Any] = {name: flags[name] for name in _SAME}
    if words["framework"] == "horovod":
        words["framework"] = "mpi"
    words |= _workers(flags["workers"]) | _gpus(flags)
    words["suspend"] = flags["suspend"] or None
    words["keep"] = flags["ttl"]
    words["requirements"] = [line for each in flags["requirements"] for line in _required(each)]
    words["env"] = environment(flags["env"])
    words["secrets"], words["configs"] = flags["env_secret"], flags["env_config"]
    words["mounts"] = dict(_mount(each) for each in flags["mount"])
    words["nodes"] = _pairs("--selector", flags["selector"])
    words["tolerations"], words["retry_on"] = flags["toleration"], flags["retry_on"]
    words["labels"] = _pairs("--label", flags["label"])
    words["annotations"] = _pairs("--annotation", flags["annotation"])
    words["ports"] = {name: _number("--port", port)
                      for name, port in _pairs("--port", flags["port"]).items()}  # fmt: skip
    if flags["workdir"] and not os.path.isdir(flags["workdir"]):
        raise exits.CliError(
            f"--workdir {flags['workdir']}: there is no such folder.",
            "Check the path; `--workdir .` sends the folder you are in.",
            exits.NOT_FOUND,
        )
    said = {key: value for key, value in words.items() if value not in (None, "", {}, [], ())}
    return Job(
        tuple(flags["command"]), said, flags["file"] or "", flags["role"] or "",
        flags["workdir"] or "", _size("--workdir-limit", flags["workdir_limit"]),
    )  # fmt: skip


def tell_forgotten(out: Output, job: Job) -> None:
    """The first surprise of many: files of the folder one is in do not come along by themselves."""
    if job.workdir or job.file or "image" in job.words:
        return
    named = (word for word in job.command[:4] if not os.path.isabs(word) and os.path.isfile(word))
    if file := next(named, ""):
        out.hint(f"{file} is in your folder, not in the job's; to send the folder: --workdir .")


def require_command(job: Job) -> None:
    if not job.command and not job.file:
        raise exits.CliError(
            "No command was given.",
            "Write it after two dashes: windlass run -- python train.py; or give -f FILE.",
            exits.USAGE,
        )


def wanted(job: Job) -> dict[str, Any]:
    """The Run as a plain object. A file is checked by the server's own rules before it is sent,
    because only here its lines are known; what flags say is left to the server."""
    from windlass.sdk import runs

    require_command(job)
    built = runs.build(job.command or ("true",), **job.words)
    value = _plain(built)
    if not job.file:
        return value
    from windlass.cli import checking
    from windlass.kinds import run as kind

    document = _over_file(job, built, value)
    metadata = {"namespace": "default", **document.data["metadata"]}
    placed = dataclasses.replace(document, data={**document.data, "metadata": metadata})
    checking.check([(kind.Run, placed)])
    found: dict[str, Any] = document.data
    return found


def _plain(built: Any) -> dict[str, Any]:
    """As `wire.to_dict`, for an object that came from nowhere: cheaper, and commands must start
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
    """The file's document, with what the flags say over it."""
    from windlass.cli import manifests

    documents = [each for each in manifests.read_all((job.file,)) if each.data.get("kind") == "Run"]
    if len(documents) != 1:
        raise exits.CliError(
            f"{job.file} holds {len(documents)} runs; a job is exactly one.",
            "Hand in several with: windlass apply -f FILE",
            exits.INVALID,
        )
    document = documents[0]
    value = document.data
    metadata, spec = value.setdefault("metadata", {}), value.setdefault("spec", {})
    over = _explicit(job, built, flags)
    role = over["spec"].pop("roles")[0]
    if "name" in job.words or not (metadata.get("name") or metadata.get("generateName")):
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
    raise exits.CliError(
        f"{job.file} has no role {job.role!r}.", f"It has: {names}.", exits.NOT_FOUND
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
    "resize": ("resize",),
}


def _explicit(job: Job, built: Any, flags: dict[str, Any]) -> dict[str, Any]:
    """The object of the flags, where what was said stands although it equals the default: it must
    win over the file."""
    for word, path in _PLACES.items():
        if word in job.words:
            _put(flags, path, built)
    for word, path in _ROLE_PLACES.items():
        if word in job.words:
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
            raise exits.CliError(
                f"--env {name} passes on your own variable {name}, but it is not set.",
                f"Set it, or write --env {name}=VALUE.",
                exits.USAGE,
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
        raise exits.CliError(
            "--gpus and --share exclude each other.",
            "A share is a part of one GPU: give --share 1/4 alone.",
            exits.USAGE,
        )
    if gpus is not None and not gpus.isdigit():
        raise _wrong("--gpus", gpus, "a whole number; parts of one are given with --share 1/4")
    if share is not None and not _is_fraction(share):
        raise _wrong("--share", share, "a part of one device, such as 1/4")
    words: dict[str, Any] = {"gpus": share or gpus, "gpu_models": list(flags["gpu_model"])}
    devices: dict[str, int] = {}
    for entry in flags["device"]:
        pair, _, model = entry.partition(":")
        kind, equals, count = pair.partition("=")
        number = _number("--device", count) if equals else 1
        if kind == "gpu":
            words["gpus"] = str(number)
        else:
            devices[kind] = number
        if model:
            if kind != "gpu":
                raise _wrong("--device", entry, "KIND or KIND=N; models are told apart for gpu")
            words["gpu_models"] += model.split(",")
    return {**words, "devices": devices}


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
        raise exits.CliError(
            f"The requirements file {entry} cannot be read: {problem.strerror}.",
            "Check the path; a package is named without a folder: -r numpy",
            exits.NOT_FOUND,
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


def _number(flag: str, text: str) -> int:
    if not text.isdigit():
        raise _wrong(flag, text, "a number")
    return int(text)


def _size(flag: str, text: str | None) -> int | None:
    from windlass.kinds import quantity

    try:
        return None if text is None else quantity.whole(text)
    except ValueError:
        raise _wrong(flag, str(text), "a size such as 2Gi") from None


def _wrong(flag: str, value: str, right: str) -> exits.CliError:
    return exits.CliError(f"{flag} {value} cannot be used.", f"Write {right}.", exits.USAGE)
