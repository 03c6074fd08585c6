"""Columns of a job list that say what else a described job can: models, shares, roles, nodes.

A cell holds what the field of the described job would, as YAML in one line: `h100`, `[h100, a100]`,
`{pool: train}`. A row with any of them becomes a `jobspec.JobSpec`; all other rows are read by
`sim.inputs.csv_traces` alone, which is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import yaml

from windlass.kinds.values import duration, quantity
from windlass.sim.inputs import field_names, job_spec
from windlass.sim.scenario import BadInput, Job

_NODES = ("placement", "nodes")
PATHS: dict[str, tuple[str, ...]] = {
    "replicas": ("replicas",),
    "minreplicas": ("minReplicas",),
    "most": ("most",),
    "models": ("models",),
    "share": ("share",),
    "devices": ("devices",),
    "roles": ("roles",),
    "preemptible": ("preemptible",),
    "movable": ("movable",),
    "max": ("max",),
    "topology": ("topology",),
    "bundle": ("bundle",),
    "gang": ("placement", "gang"),
    "pack": ("placement", "pack"),
    "selector": (*_NODES, "selector"),
    "tolerations": (*_NODES, "tolerations"),
    "capabilities": (*_NODES, "capabilities"),
    "prefer": (*_NODES, "prefer"),
}
"""Column -> the field of a described job that its cells give."""
_LISTS = frozenset(("models", "devices", "roles", "tolerations", "capabilities", "prefer"))
WITHOUT_GPUS = frozenset(("devices", "roles", "share"))
"""Columns that say which devices a job asks for, so that `gpus` may be left out."""


def columns(header: Iterable[str]) -> dict[str, str]:
    """Of a header, the columns that are read here: the name in `PATHS` -> the name in the file."""
    return {plain: name for name in header if (plain := name.replace("_", "")) in PATHS}


def given(row: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """The cells of a row that say something, by the names in `PATHS`."""
    return {name: text for name, column in known.items() if (text := row.get(column, "").strip())}


def job(
    where: str, key: str, base: dict[str, Any], cells: Mapping[str, str], builder: job_spec.Builder
) -> Job:
    """The job of a row: `base` has what the plain columns say, in the fields of a described job."""
    document = dict(base)
    for name, text in cells.items():
        _put(document, PATHS[name], _value(where, name, text))
    try:
        field_names.refuse_unknown(document, job_spec.JobSpec)
        return builder.job(msgspec.convert(document, job_spec.JobSpec), key)
    except BadInput as problem:
        raise BadInput(f"{where}: {problem}") from problem
    except (msgspec.ValidationError, quantity.Malformed, duration.Malformed) as problem:
        raise BadInput(f"{where}: {problem}.") from problem


def _value(where: str, name: str, text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        raise BadInput(
            f"{where}: {name} is {text!r}: write it as in a described job, as YAML in one line."
        ) from problem
    return [value] if name in _LISTS and not isinstance(value, list) else value


def _put(document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    *above, last = path
    for name in above:
        document = document.setdefault(name, {})
    document[last] = value
