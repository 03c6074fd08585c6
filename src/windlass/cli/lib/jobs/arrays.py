"""Changes of a live array: some of its indices are stopped, more or fewer run at once."""

from __future__ import annotations

from windlass.cli.lib import base, client_session, exit_codes
from windlass.cli.lib.output import Output
from windlass.kinds import codec
from windlass.kinds.types import run
from windlass.kinds.values import index_set
from windlass.sdk import index_handle


def stop_indices(
    out: Output, names: tuple[str, ...], indices: str, wait: bool, target: base.Target
) -> None:
    """Stops indices of each array; with `wait` returns when they have ended."""
    try:
        chosen = index_set.parse(indices)
    except ValueError as problem:
        raise exit_codes.CliError(
            f"--index {indices} cannot be used: {problem}.",
            "Write 7, 3-5 or 3-5,9.",
            exit_codes.USAGE,
        ) from None

    async def work(session: client_session.Session) -> None:
        for name in (each.removeprefix("run/") for each in names):
            array = await _array(session, name)
            handles = [
                index_handle.AsyncIndexHandle(session.store, array, index)
                for index in index_set.members(chosen)
            ]
            try:
                await index_handle.stop(session.store, array, indices)
            except ValueError as problem:
                raise exit_codes.CliError(
                    exit_codes.sentence(str(problem)),
                    "Choose some of these.",
                    exit_codes.NOT_FOUND,
                ) from None
            what = "index" if len(handles) == 1 else "indices"
            out.say(f"run/{name}: {what} {index_set.text(chosen)} stopping")
            if wait:
                for handle in handles:
                    await handle.wait()
        out.result(
            {"stopped": [{"run": name, "indices": index_set.text(chosen)} for name in names]},
            names=[f"run/{name.removeprefix('run/')}" for name in names],
        )

    client_session.call(target, work)


def set_parallelism(out: Output, name: str, text: str, target: base.Target) -> None:
    """Changes how many indices may run at the same time."""
    if not text.isdecimal() or not 0 < int(text) <= index_set.MOST_INDICES:
        raise exit_codes.CliError(
            f"%{text} is not a number of indices.", "Write %16.", exit_codes.USAGE
        )

    async def work(session: client_session.Session) -> tuple[run.Run, run.Run]:
        array = await _array(session, name)
        if array.finished:
            raise exit_codes.CliError(
                f"run/{name} has ended ({array.status.phase}).",
                f"Start it again: windlass rerun {name}",
                exit_codes.CONFLICT,
            )
        patch = {"spec": {"array": {"parallelism": int(text)}}}
        return array, await session.store.patch(run.Run, name, session.namespace, patch=patch)

    before, changed = client_session.call(target, work)
    old = before.spec.array.parallelism if before.spec.array else None
    out.say(f"run/{name}: {old or 'all'} -> {text} indices at the same time")
    if changed.status.array and changed.status.array.running > int(text):
        out.hint("Those that run continue; new ones start when fewer run.")
    out.result(codec.to_dict(changed), names=[f"run/{name}"])


async def _array(session: client_session.Session, name: str) -> run.Run:
    found = await session.store.get(run.Run, name, session.namespace)
    if found.spec.array is None:
        raise exit_codes.CliError(
            f"run/{name} is not an array.", "Submit one with --array 0-99.", exit_codes.USAGE
        )
    return found
