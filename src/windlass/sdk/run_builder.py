"""Runs from the user's side: build one, hand it in, wait until it has ended."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

from windlass.kinds import run
from windlass.kinds.meta import ObjectMeta
from windlass.sdk.options import Options

if TYPE_CHECKING:
    from windlass.store.client import Store

LETTERS = "bcdfghjkmnpqrstvwxz23456789"


def build(command: Sequence[str], *, namespace: str = "", **words: Unpack[Options]) -> run.Run:
    """A Run of one role from the words of `options.Options`.

    A word that is None or empty counts as not said. Without a name it gets one from the command.

    >>> made = build(["python", "train.py"], name="first", workers=2, gpus=1, timeout="2h")
    >>> made.spec.roles[0].replicas, made.spec.roles[0].devices[0].count, made.spec.duration.max
    (2, 1, '2h')
    """
    said: dict[str, Any] = {key: value for key, value in words.items() if value not in (None, "")}
    unknown = said.keys() - Options.__annotations__.keys()
    if unknown:
        known = ", ".join(sorted(Options.__annotations__))
        raise TypeError(f"{', '.join(sorted(unknown))}: no such option of a run; there are {known}")
    spec = run.RunSpec(
        roles=[_role(command, said)],
        queue=said.get("queue"),
        user=said.get("user"),
        framework=said.get("framework", "process"),
        placement=_placement(said),
        environment=_part(
            run.Environment,
            image=said.get("image"),
            python=said.get("python"),
            requirements=_listed(said, "requirements"),
            setup=said.get("setup"),
        ),
        code=run.Code(digest=said["code"]) if "code" in said else None,
        mounts=[_mount(path, what) for path, what in said.get("mounts", {}).items()] or None,
        duration=_part(
            run.Durations,
            expected=said.get("expected"),
            max=said.get("timeout"),
            start=said.get("start_timeout"),
        ),
        retries=_given(run.Retries, limit=said.get("retries"), causes=_listed(said, "retry_on")),
        checkpoint=_given(
            run.Checkpoint,
            signal=said.get("signal"),
            grace=said.get("grace"),
            path=said.get("checkpoint"),
        ),
        overrides=_part(
            run.Overrides,
            labels=_mapping(said, "labels"),
            annotations=_mapping(said, "annotations"),
        ),
        ttl_after_finished=said.get("keep"),
        **{key: said[key] for key in _SAME if key in said},
    )
    metadata = ObjectMeta(
        name=said.get("name") or name_for(command),
        namespace=namespace,
        labels=_mapping(said, "labels"),
        annotations=_mapping(said, "annotations"),
    )
    return run.Run(metadata=metadata, spec=spec)


_SAME = ("priority", "preemptible", "suspend", "restart")
"""Words that the spec has, too."""


def name_for(command: Sequence[str]) -> str:
    """`python train.py` -> `train-x7k2p`: readable, and unlikely to be taken."""
    words = [word.rpartition("/")[2] for word in command if not word.startswith("-")]
    script = next((word for word in words if "." in word.strip(".")), words[0] if words else "run")
    stem = re.sub(r"[^a-z0-9]+", "-", script.partition(".")[0].lower()).strip("-")
    if not stem[:1].isalpha():
        stem = f"run-{stem}".strip("-")
    tail = "".join(LETTERS[byte % len(LETTERS)] for byte in os.urandom(5))
    return f"{stem[: run.MAX_NAME - 6].rstrip('-')}-{tail}"


async def wait(
    store: Store,
    name: str,
    namespace: str,
    on_change: Callable[[run.Run], None] = lambda _run: None,
    made: run.Run | None = None,
) -> run.Run:
    """The Run as it ended; `on_change` sees every state on the way. NotFound if it is deleted.
    `made`: as it was just written, so that it need not be asked for."""
    # Imported late: who only builds a run, such as a command that sends it ahead, needs none.
    from windlass.sdk import watching
    from windlass.store import errors
    from windlass.store.client import ObjectList

    start = None if made is None else ObjectList([made], made.metadata.resource_version)
    stream = watching.changes(
        store, run.Run, namespace, field_selector=f"metadata.name={name}", start=start
    )
    async with contextlib.aclosing(stream) as changes:
        async for change, current in changes:
            if change == "DELETED":
                raise errors.NotFound(
                    f"run {name} was deleted while it was waited for; submit it again to run it"
                )
            on_change(current)
            if current.finished:
                return current
    raise AssertionError("the stream of changes never ends")


def exit_code(ended: run.Run) -> int:
    """The job's own exit code; 1 if it ended badly without one."""
    if ended.status.phase == "Succeeded":
        return 0
    return ended.status.exit_code or 1


def _role(command: Sequence[str], said: dict[str, Any]) -> run.Role:
    role = run.Role(
        command=list(command),
        replicas=said.get("workers", 1),
        min_replicas=said.get("min_workers"),
        env=_mapping(said, "env"),
        env_from=[
            *(run.EnvFrom(secret=name) for name in said.get("secrets", ())),
            *(run.EnvFrom(config=name) for name in said.get("configs", ())),
        ]
        or None,
        ports=[run.Port(name=name, port=port) for name, port in said.get("ports", {}).items()]
        or None,
        resources=_given(
            run.Resources,
            cpu=_amount(said.get("cpus")),
            memory=said.get("memory"),
            shm=said.get("shm"),
        ),
        devices=_devices(said) or None,
    )
    if "resize" in said:
        role.resize = said["resize"]
    return role


def _devices(said: dict[str, Any]) -> list[run.Device]:
    asked = said.get("gpus", 0)
    models = _listed(said, "gpu_models")
    found = []
    if isinstance(asked, str) and "/" in asked:
        found.append(run.Device(kind="gpu", share=asked, models=models))
    elif float(asked) % 1:
        import fractions  # late: few ask for parts, and everybody would wait for it

        part = fractions.Fraction(str(asked)).limit_denominator(100)
        found.append(run.Device(kind="gpu", share=str(part), models=models))
    elif int(asked):
        found.append(run.Device(kind="gpu", count=int(asked), models=models))
    return found + [run.Device(kind=kind, count=n) for kind, n in said.get("devices", {}).items()]


def _placement(said: dict[str, Any]) -> run.Placement:
    choice = _part(
        run.NodeChoice,
        selector=_mapping(said, "nodes"),
        tolerations=[_toleration(text) for text in said.get("tolerations", ())] or None,
    )
    placement: run.Placement = _given(
        run.Placement,
        gang=said.get("gang"),
        pack=said.get("pack"),
        movable=said.get("movable"),
    )
    placement.nodes = choice
    if level := said.get("topology", ""):
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


def _amount(value: float | str | None) -> str | None:
    return None if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _listed(said: dict[str, Any], key: str) -> list[Any] | None:
    return list(said.get(key, ())) or None


def _mapping(said: dict[str, Any], key: str) -> dict[str, Any] | None:
    return dict(said.get(key, {})) or None


def _given(cls: Any, **values: Any) -> Any:
    """The struct, with its own defaults for what was not said."""
    return cls(**{key: value for key, value in values.items() if value is not None})


def _part(cls: Any, **values: Any) -> Any:
    """The same, or nothing if nothing was said."""
    return _given(cls, **values) if any(value is not None for value in values.values()) else None
