"""Builds Run objects from options, and waits until a run has ended."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, get_args

from windlass.kinds import annotations as known
from windlass.kinds.types import run
from windlass.kinds.types.meta import ObjectMeta
from windlass.kinds.values import index_set
from windlass.sdk.run_options import Options

if TYPE_CHECKING:
    from windlass.store.interface import Store

LETTERS = "bcdfghjkmnpqrstvwxz23456789"


def build(command: Sequence[str], *, namespace: str = "", **given: Unpack[Options]) -> run.Run:
    """A Run of one role from `run_options.Options`.

    An option that is None or empty counts as absent. The default name comes from the command.

    >>> made = build(["python", "train.py"], name="first", workers=2, gpus=1, timeout="2h")
    >>> made.spec.roles[0].replicas, made.spec.roles[0].devices[0].count, made.spec.duration.max
    (2, 1, '2h')
    """
    options: dict[str, Any] = {
        key: value for key, value in given.items() if value not in (None, "")
    }
    check_names(given)
    metadata = ObjectMeta(
        name=options.get("name") or name_for(command),
        namespace=namespace,
        labels=_mapping(options, "labels"),
        annotations=_mapping(options, "annotations"),
    )
    return run.Run(metadata=metadata, spec=_spec(command, options))


_OTHER_NAMES = {
    "mem": "memory", "ram": "memory", "replicas": "workers", "num_workers": "workers",
    "num_gpus": "gpus", "num_cpus": "cpus", "environment": "env", "packages": "requirements",
    "pip": "requirements", "time_limit": "timeout", "max_retries": "retries",
}  # fmt: skip
"""Names that other systems give to the options."""


def check_names(options: Iterable[str], work: object = None) -> None:
    """TypeError for names that are no options of a run, each with the option that it resembles;
    if there is none, with all options. `work`: what is submitted, for a hint on functions."""
    unknown = sorted(set(options) - Options.__annotations__.keys())
    if not unknown:
        return
    found = []
    for name in unknown:
        similar = difflib.get_close_matches(name.lower(), Options.__annotations__, n=1)
        guess = _OTHER_NAMES.get(name.lower()) or (similar[0] if similar else "")
        hint = f"; did you mean {guess}?" if guess else ""
        found.append(f"{name} is not an option of a run{hint}")
    text = ", ".join(found)
    if "did you mean" not in text:
        text += f"; options are {', '.join(sorted(Options.__annotations__))}"
    if callable(work):
        text += " (arguments of the function are given by position, or with functools.partial)"
    raise TypeError(text)


_SAME = ("priority", "preemptible", "suspend", "restart")
"""Options with the name of a field of the spec."""


def name_for(command: Sequence[str]) -> str:
    """`python train.py` -> `train-x7k2p`: readable, with a random suffix."""
    words = [word.rpartition("/")[2] for word in command if not word.startswith("-")]
    script = next((word for word in words if "." in word.strip(".")), words[0] if words else "run")
    stem = re.sub(r"[^a-z0-9]+", "-", script.partition(".")[0].lower()).strip("-")
    if not stem[:1].isalpha():
        stem = f"run-{stem}".strip("-")
    return f"{stem[: run.MAX_NAME - 6].rstrip('-')}-{_random_suffix()}"


def mark(value: dict[str, Any]) -> None:
    """Marks a Run for `submission.create`, and gives it its name if the server would: a second
    request needs the same."""
    metadata = value.setdefault("metadata", {})
    own = {known.SUBMISSION: os.urandom(12).hex()}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **own}
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = metadata["generateName"] + _random_suffix()


def references(value: dict[str, Any]) -> list[tuple[str, str]]:
    """The Secrets and ConfigMaps that the replicas of a Run need, as kind and name, each once."""
    spec = value.get("spec") or {}
    found: dict[tuple[str, str], None] = {}
    for role in spec.get("roles") or ():
        for source in role.get("envFrom") or ():
            for kind in ("secret", "config"):
                if source.get(kind):
                    found[kind, source[kind]] = None
    for mount in spec.get("mounts") or ():
        kind, _, name = str(mount.get("from") or "").partition(":")
        if kind in ("secret", "config") and name:
            found[kind, name] = None
    return list(found)


def needs_check(value: dict[str, Any]) -> bool:
    """Whether a Run names other objects, whose existence is checked before it is submitted."""
    return bool(references(value) or (value.get("spec") or {}).get("after"))


def _random_suffix() -> str:
    return "".join(LETTERS[byte % len(LETTERS)] for byte in os.urandom(5))


async def wait(
    store: Store,
    name: str,
    namespace: str,
    on_change: Callable[[run.Run], None] = lambda _run: None,
    made: run.Run | None = None,
    array_index: int | None = None,
) -> run.Run:
    """Waits until the run has ended, or one index of an array, and returns it; calls `on_change`
    for every state on the way. NotFound if it is deleted.
    `made`: the Run as just created, so that it need not be read again."""
    # Imported late: a command that only builds a run does not need it.
    from windlass.kinds import array_results
    from windlass.sdk import watching
    from windlass.store import errors
    from windlass.store.interface import ObjectList

    start = None if made is None else ObjectList([made], made.metadata.resource_version)
    stream = watching.changes(
        store, run.Run, namespace, field_selector=f"metadata.name={name}", start=start
    )
    async with contextlib.aclosing(stream) as changes:
        async for change, current in changes:
            if change == "DELETED":
                raise errors.NotFound(
                    f"run {name} was deleted while the client waited for it; submit it again"
                )
            on_change(current)
            if current.finished or (
                array_index is not None and array_results.phase_of(current, array_index)
            ):
                return current
    raise AssertionError("the stream of changes never ends")


def exit_code(ended: run.Run) -> int:
    """The job's exit code; 1 if it failed without one."""
    if ended.status.phase == "Succeeded":
        return 0
    return ended.status.exit_code or 1


def _spec(command: Sequence[str], options: dict[str, Any]) -> run.RunSpec:
    return run.RunSpec(
        roles=[_role(command, options)],
        after=[after(each) for each in options.get("after") or ()] or None,
        array=_array(options["array"]) if "array" in options else None,
        queue=options.get("queue"),
        user=options.get("user"),
        framework=options.get("framework", "process"),
        placement=_placement(options),
        environment=_part(
            run.Environment,
            image=options.get("image"),
            python=options.get("python"),
            requirements=_listed(options, "requirements"),
            setup=options.get("setup"),
        ),
        code=run.Code(digest=options["code"]) if "code" in options else None,
        mounts=[_mount(path, what) for path, what in options.get("mounts", {}).items()] or None,
        duration=_part(
            run.Durations,
            expected=options.get("expected"),
            max=options.get("timeout"),
            start=options.get("start_timeout"),
        ),
        retries=_given(
            run.Retries, limit=options.get("retries"), causes=_listed(options, "retry_on")
        ),
        checkpoint=_given(
            run.Checkpoint,
            signal=options.get("signal"),
            grace=options.get("grace"),
            path=options.get("checkpoint"),
        ),
        outputs=[_output(text) for text in options.get("outputs", ())] or None,
        overrides=_part(
            run.Overrides,
            labels=_mapping(options, "labels"),
            annotations=_mapping(options, "annotations"),
        ),
        ttl_after_finished=options.get("keep"),
        **{key: options[key] for key in _SAME if key in options},
    )


def after(entry: Any) -> run.After:
    """`"prepare"`, `"prepare:any"`, or a handle of a run."""
    if isinstance(entry, run.After):
        return entry
    name, _, when = str(getattr(entry, "name", entry)).partition(":")
    return run.After(run=name, when=cast(Any, when or "ok"))


def _array(text: str) -> run.Array:
    indices, limit = index_set.split_limit(text)
    index_set.parse_array(indices)
    return run.Array(indices=indices, parallelism=limit)


def _role(command: Sequence[str], options: dict[str, Any]) -> run.Role:
    role = run.Role(
        command=list(command),
        replicas=options.get("workers", 1),
        min_replicas=options.get("min_workers"),
        env=_mapping(options, "env"),
        env_from=[
            *(run.EnvFrom(secret=name) for name in options.get("secrets", ())),
            *(run.EnvFrom(config=name) for name in options.get("configs", ())),
        ]
        or None,
        ports=[run.Port(name=name, port=port) for name, port in options.get("ports", {}).items()]
        or None,
        resources=_given(
            run.Resources,
            cpu=_amount(options.get("cpus")),
            memory=options.get("memory"),
            shm=options.get("shm"),
            disk=options.get("disk"),
        ),
        devices=_devices(options) or None,
    )
    if "resize" in options:
        role.resize = options["resize"]
    return role


def _devices(options: dict[str, Any]) -> list[run.Device]:
    models = _listed(options, "gpu_models")
    asked = options.get("gpus", 1 if models else 0)
    found = []
    if isinstance(asked, str) and "/" in asked:
        found.append(run.Device(kind="gpu", share=asked, models=models))
    elif float(asked) % 1:
        import fractions  # imported late, because few runs use shares

        part = fractions.Fraction(str(asked)).limit_denominator(100)
        found.append(run.Device(kind="gpu", share=str(part), models=models))
    elif int(asked):
        found.append(run.Device(kind="gpu", count=int(asked), models=models))
    return found + [
        run.Device(kind=kind, count=n) for kind, n in options.get("devices", {}).items()
    ]


def _placement(options: dict[str, Any]) -> run.Placement:
    choice = _part(
        run.NodeChoice,
        selector=_mapping(options, "nodes"),
        tolerations=[_toleration(text) for text in options.get("tolerations", ())] or None,
    )
    placement: run.Placement = _given(
        run.Placement,
        gang=options.get("gang"),
        pack=options.get("pack"),
        movable=options.get("movable"),
    )
    placement.nodes = choice
    if level := options.get("topology", ""):
        mode: Literal["required", "preferred"] = "required" if level[-1] == "!" else "preferred"
        placement.topology = run.Topology(level=level.rstrip("!"), mode=mode)
    return placement


def _toleration(text: str) -> run.Toleration:
    """`key`, `key=value`, either with `:Effect`; `*` for every taint."""
    pair, _, effect = text.partition(":")
    key, equals, value = pair.partition("=")
    return run.Toleration(
        key="" if key == "*" else key,
        operator="Equal" if equals else "Exists",
        value=value,
        effect=cast(Any, effect),
    )


def _mount(path: str, what: str) -> run.Mount:
    source, colon, mode = what.rpartition(":")
    if colon and mode in ("ro", "rw"):
        return run.Mount(source=source, path=path, read_only=mode == "ro")
    return run.Mount(source=what, path=path)


def _output(text: str) -> run.Output:
    """`PATH`, or `PATH:MOMENT,...` with end, failure or checkpoint."""
    path, colon, moments = text.rpartition(":")
    when = moments.split(",")
    if colon and set(when) <= set(get_args(run.OutputMoment)):
        return run.Output(path=path, when=cast(Any, when))
    return run.Output(path=text)


def _amount(value: float | str | None) -> str | None:
    return None if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _listed(options: dict[str, Any], key: str) -> list[Any] | None:
    return list(options.get(key, ())) or None


def _mapping(options: dict[str, Any], key: str) -> dict[str, Any] | None:
    return dict(options.get(key, {})) or None


def _given(cls: Any, **values: Any) -> Any:
    """The struct, with its defaults for absent values."""
    return cls(**{key: value for key, value in values.items() if value is not None})


def _part(cls: Any, **values: Any) -> Any:
    """The same; None if all values are absent."""
    return _given(cls, **values) if any(value is not None for value in values.values()) else None
