"""The cache key of a step, and which part of it changed.

A key is the digest of all parts: code, values, libraries, environment, parameters, contents of the
inputs, names of the outputs, salt. Equal keys mean that the step would compute the same again, as
far as its code shows. Files that it opens by itself are not seen: pass them as inputs.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windlass.pipelines.fingerprint.collector import CannotFingerprint, Collector

_FORMAT = "1"
"""Changed when digests are made in another way: keys of another format never match."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepKey:
    """The key of a step with given inputs, and what it was made of."""

    digest: str
    parts: Mapping[str, str]


def step_key(
    function: Callable[..., Any],
    parameters: Mapping[str, Any],
    *,
    inputs: Mapping[str, str],
    environment: str,
    outputs: Sequence[str] = (),
    salt: str = "",
    ignore: Sequence[str] = (),
) -> StepKey:
    """The key of `function` with these parameters.

    `inputs` are digests of the contents of artifacts, by name of the parameter. `environment` is
    the digest of the resolved environment. `ignore` names parameters that do not change the result.
    Raises CannotFingerprint if the function refers to something that cannot be compared.
    """
    collector = Collector()
    entry = collector.value(function)
    parts = collector.parts
    parts["entry"] = entry
    for name, value in sorted(parameters.items()):
        if name not in ignore:
            try:
                parts[f"parameter {name}"] = collector.value(value)
            except CannotFingerprint as problem:
                raise CannotFingerprint(f"parameter {name}: {problem}") from problem
    for name, digest in sorted(inputs.items()):
        if name not in ignore:
            parts[f"input {name}"] = digest
    parts["environment"] = environment
    parts["outputs"] = ",".join(sorted(outputs))
    parts["salt"] = salt
    return StepKey(key_of(parts), parts)


def key_of(parts: Mapping[str, str]) -> str:
    """The digest of all parts."""
    sink = hashlib.sha256(_FORMAT.encode())
    for name, digest in sorted(parts.items()):
        for text in (name, digest):
            encoded = text.encode("utf-8", "surrogatepass")
            sink.update(len(encoded).to_bytes(8, "big"))
            sink.update(encoded)
    return sink.hexdigest()


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A part that differs between two keys of one step."""

    kind: str
    """`code`, `class`, `value`, `closure`, `default`, `uses`, `library`, `parameter` ..."""
    name: str
    how: str
    """`changed`, `added` or `removed`."""

    def __str__(self) -> str:
        subject = f"{self.kind} {self.name}".rstrip()
        return f"{subject} {'is new' if self.how == 'added' else f'was {self.how}'}"


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    """What differs. What a function refers to is named only if nothing else differs: a new value
    of a global name, for one, has a part of its own."""
    found: list[Change] = []
    for part in sorted(set(before) | set(after)):
        if before.get(part) == after.get(part):
            continue
        how = "changed"
        if part not in before:
            how = "added"
        elif part not in after:
            how = "removed"
        kind, _, name = part.partition(" ")
        found.append(Change(kind, name, how))
    contents = [each for each in found if each.kind not in ("uses", "entry")]
    return contents or found
