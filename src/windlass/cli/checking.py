"""Finds what is wrong with objects in files before anything is sent, and says on which line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from windlass.cli import exits
from windlass.cli.manifests import Document
from windlass.kinds import registry, validation
from windlass.kinds.meta import Object

_UNKNOWN = re.compile(r'unknown field "([^"]+)"')


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One problem at one place of a file."""

    place: str
    field: str
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, self.field, self.message) if part)


def check(documents: Iterable[tuple[type[Object], Document]]) -> None:
    """Raises with every problem of every document; nothing of ours is left to the server.

    Kubernetes' own kinds are partial here, so unknown fields of theirs are the server's to judge.
    """
    faults = [fault for kind, document in documents for fault in _faults(kind, document)]
    if not faults:
        return
    plural = "problem was" if len(faults) == 1 else "problems were"
    raise exits.CliError(
        f"{len(faults)} {plural} found; nothing was sent.",
        "\n".join(str(fault) for fault in faults),
        exits.INVALID,
    )


def _faults(kind: type[Object], document: Document) -> Iterable[Fault]:
    own = kind in registry.OWN
    metadata = document.data.get("metadata")
    if not isinstance(metadata, dict) or not (metadata.get("name") or metadata.get("generateName")):
        yield Fault(document.place("metadata"), "metadata.name", "Required value: give it a name")
        return
    if not own:
        return
    pruned, unknown = validation.prune(kind, document.data)
    for message in unknown:
        found = _UNKNOWN.search(message)
        field = found[1] if found else ""
        yield Fault(document.place(field), "", message)
    for problem in validation.validate(kind, validation.defaulted(kind, pruned), None):
        yield Fault(document.place(problem.path), problem.path, problem.message)
