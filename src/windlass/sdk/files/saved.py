"""Outputs as a whole, and objects among them: what `windlass.save` wrote."""

from __future__ import annotations

import pickle
from typing import Any

from windlass.kinds.types import run
from windlass.sdk.files import collected, copying
from windlass.sdk.files.collected import OutputFile
from windlass.sdk.files.places import PathError
from windlass.store.kubernetes.client import KubernetesStore

PICKLED = ".pickle"
"""How `windlass.save` ends the name of the file of an object; the library inside of jobs imports
nothing of this package."""


_FOLDERS = {"": "", collected.OWN_FOLDER: "/outputs", "/": "/absolute"}
"""Where files go that are relative, of `$WINDLASS_OUTPUTS`, and absolute."""


async def download(
    store: KubernetesStore, owner: run.Run, destination: str, progress: copying.Progress
) -> copying.Report:
    """Copies all outputs of a run; those of several replicas into a folder each. Absolute paths
    are placed below the folder `absolute`, those of `$WINDLASS_OUTPUTS` below `outputs`."""
    kept = owner.status.outputs or {}
    replicas = sorted(replica for replica, each in kept.items() if each.files)
    if not replicas:
        raise PathError(f"run {owner.name} has no outputs; declare them with --output PATH")
    total = copying.Report()
    for replica in replicas:
        into = destination if len(replicas) == 1 else f"{destination.rstrip('/')}/{replica}"
        groups = _by_base(await collected.files_of(store, owner, replica))
        for base, folder in _FOLDERS.items():
            if chosen := groups[base]:
                source = collected.CollectedFiles(store, owner, replica, chosen)
                where = f"{into.rstrip('/') or '/'}{folder}"
                path = f"{base.rstrip('/')}/." if base else ""
                total.add(await copying.download(source, path, f"{where}/", progress))
    return total


def _by_base(files: list[OutputFile]) -> dict[str, list[OutputFile]]:
    """Each file with the first base that it is below."""
    groups: dict[str, list[OutputFile]] = {base: [] for base in _FOLDERS}
    for each in files:
        groups[next(base for base in _FOLDERS if collected.is_below(base, each.path))].append(each)
    return groups


async def load(store: KubernetesStore, owner: run.Run, name: str, replica: str = "") -> Any:
    """What `windlass.save(obj, name)` wrote in a replica. The content is unpickled: load only what
    your team's runs saved."""
    wanted = {f"{collected.OWN_FOLDER}/{name}{suffix}": suffix for suffix in (PICKLED, "")}
    found = await collected.files_of(store, owner, replica)
    for each in sorted(found, key=lambda file: file.replica):
        if each.path in wanted and replica in ("", each.replica) and each.digest:
            pieces = [piece async for piece in collected.content(store, owner, each.digest)]
            data = b"".join(pieces)
            return pickle.loads(data) if wanted[each.path] else data  # noqa: S301 - documented
    raise PathError(
        f"run {owner.name} has saved no {name!r}; list what it saved: windlass outputs {owner.name}"
    )
