"""Runs from the user's side: build one, hand it in, wait until it has ended."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Sequence

from windlass.kinds import run
from windlass.kinds.meta import ObjectMeta
from windlass.sdk import watching
from windlass.store import errors
from windlass.store.client import Store

_LETTERS = "bcdfghjkmnpqrstvwxz23456789"


def build(
    command: Sequence[str],
    *,
    name: str = "",
    namespace: str = "",
    workers: int = 1,
    cpus: str = "",
    memory: str = "",
    queue: str = "",
    priority: int | None = None,
    env: dict[str, str] | None = None,
) -> run.Run:
    """A Run of one role. Without a name it gets one from the command."""
    resources = run.Resources()
    if cpus:
        resources.cpu = cpus
    if memory:
        resources.memory = memory
    role = run.Role(
        name="worker",
        replicas=workers,
        command=list(command),
        env=env or None,
        resources=resources,
    )
    spec = run.RunSpec(roles=[role], queue=queue or None)
    if priority is not None:
        spec.priority = priority
    metadata = ObjectMeta(name=name or name_for(command), namespace=namespace)
    return run.Run(metadata=metadata, spec=spec)


def name_for(command: Sequence[str]) -> str:
    """`python train.py` -> `train-x7k2p`: readable, and unlikely to be taken."""
    words = [word.rpartition("/")[2] for word in command if not word.startswith("-")]
    script = next((word for word in words if "." in word.strip(".")), words[0] if words else "run")
    stem = re.sub(r"[^a-z0-9]+", "-", script.partition(".")[0].lower()).strip("-")
    if not stem[:1].isalpha():
        stem = f"run-{stem}".strip("-")
    tail = "".join(secrets.choice(_LETTERS) for _ in range(5))
    return f"{stem[: run.MAX_NAME - 6].rstrip('-')}-{tail}"


async def wait(
    store: Store,
    name: str,
    namespace: str,
    on_change: Callable[[run.Run], None] = lambda _run: None,
) -> run.Run:
    """The Run as it ended; `on_change` sees every state on the way. NotFound if it is deleted."""
    stream = watching.changes(store, run.Run, namespace, field_selector=f"metadata.name={name}")
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
