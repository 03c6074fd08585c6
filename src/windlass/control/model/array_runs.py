"""The Run of one index of an array: its name, its labels, and how it is recognised. Pure.

An array is one Run with `spec.array`. The array controller creates a Run for each index when its
turn has come; that Run is placed, retried and charged like any other.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib

import msgspec

from windlass.kinds import annotations as known
from windlass.kinds.types import meta, run
from windlass.kinds.values import index_set

_TAIL = 6


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Which index of which array a Run is."""

    array: str
    array_uid: str
    index: int


def identity(owner: run.Run) -> Identity | None:
    """By the controller of the Run and its labels; None: it is a Run of its own."""
    labels = owner.metadata.labels or {}
    index = labels.get(run.LABEL_ARRAY_INDEX, "")
    for each in owner.metadata.owner_references or ():
        is_run = each.kind == run.Run.resource.kind and each.controller
        if is_run and index.isdecimal() and labels.get(run.LABEL_ARRAY_UID) == each.uid:
            return Identity(each.name, each.uid, int(index))
    return None


def labels_of(owner: run.Run) -> dict[str, str]:
    """The labels of its pods that name the array."""
    found = identity(owner)
    if found is None:
        return {}
    return {
        run.LABEL_ARRAY: found.array,
        run.LABEL_ARRAY_UID: found.array_uid,
        run.LABEL_ARRAY_INDEX: str(found.index),
    }


def name_of(array: run.Run, index: int, *, taken: bool = False) -> str:
    """`sweep-7`. With a tail that belongs to the array if that is too long, or `taken` by another
    Run: the same array and index always give the same name."""
    plain = f"{array.name}-{index}"
    if len(plain) <= run.MAX_NAME and not taken:
        return plain
    digest = hashlib.sha256(f"{array.uid}/{index}".encode()).digest()
    tail = f"-{base64.b32encode(digest).decode().lower()[:_TAIL]}-{index}"
    return array.name[: run.MAX_NAME - len(tail)].rstrip("-.") + tail


def run_of(array: run.Run, index: int, *, taken: bool = False) -> run.Run:
    """The Run of one index, as it is created."""
    resource = array.resource
    kept = array.metadata
    return run.Run(
        metadata=meta.ObjectMeta(
            name=name_of(array, index, taken=taken),
            namespace=array.namespace,
            labels={
                **(kept.labels or {}),
                run.LABEL_ARRAY: array.name,
                run.LABEL_ARRAY_UID: array.uid,
                run.LABEL_ARRAY_INDEX: str(index),
            },
            annotations=_annotations(kept.annotations),
            # With that of the ledger from the start: adding it later would be one more write.
            finalizers=[run.FINALIZER_ARRAY, *_ledger(kept.finalizers)],
            owner_references=[
                meta.OwnerReference(
                    api_version=resource.api_version, kind=resource.kind, name=array.name,
                    uid=array.uid, controller=True, block_owner_deletion=True,
                )
            ],
        ),
        spec=spec_of(array, index),
    )  # fmt: skip


def spec_of(array: run.Run, index: int) -> run.RunSpec:
    """The job of one index: the array's own, with the index in the environment."""
    given = environment(array, index)
    roles = [
        msgspec.structs.replace(role, env={**(role.env or {}), **given})
        for role in array.spec.roles
    ]
    return msgspec.structs.replace(
        array.spec, roles=roles, array=None, after=None, ttl_after_finished=None, stop=False
    )


def environment(array: run.Run, index: int) -> dict[str, str]:
    """The variables of one index, with the names of Slurm beside our own."""
    indices = index_set.parse(array.spec.array.indices) if array.spec.array else 1 << index
    return {
        "WINDLASS_ARRAY": array.name,
        "WINDLASS_ARRAY_INDEX": str(index),
        "SLURM_ARRAY_JOB_ID": array.name,
        "SLURM_ARRAY_TASK_ID": str(index),
        "SLURM_ARRAY_TASK_COUNT": str(indices.bit_count()),
        "SLURM_ARRAY_TASK_MIN": str(index_set.lowest(indices)),
        "SLURM_ARRAY_TASK_MAX": str(indices.bit_length() - 1),
    }


def _ledger(finalizers: list[str] | None) -> list[str]:
    return [name for name in finalizers or () if name == run.FINALIZER_LEDGER]


def _annotations(given: dict[str, str] | None) -> dict[str, str] | None:
    """Without what identifies the submission of the array itself."""
    left = {key: value for key, value in (given or {}).items() if key != known.SUBMISSION}
    return left or None
