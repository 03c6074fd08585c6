"""Amounts of resources on the command line: `gpu=8` into a queue's spec, and back into words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from windlass.cli import exits

QUEUE_OPTIONS = (
    click.option("--parent", default=None, metavar="QUEUE", help="The queue above it."),
    click.option("--guarantee", multiple=True, metavar="RESOURCE=N", help="gpu=8, cpu=64."),
    click.option("--limit", multiple=True, metavar="RESOURCE=N", help="Never more than this."),
    click.option("--lend", multiple=True, metavar="RESOURCE=N", help="What others may borrow."),
    click.option("--weight", type=click.IntRange(1, 1000000), help="Its part of what is free."),
    click.option("--order", type=click.Choice(
        ("fifo", "lifo", "priority", "fair", "shortest", "attained")), help="Who is next."),
    click.option("--strict/--no-strict", default=None, help="The head blocks the others."),
    click.option("--min-runtime", default=None, metavar="TIME", help="Not preempted before."),
    click.option("--max-priority", type=click.IntRange(0, 1000), help="Caps priorities."),
)  # fmt: skip
"""What a queue may use; `spec` reads them."""


def spec(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a queue's spec, only those that were given."""
    found: dict[str, Any] = {
        "parent": flags["parent"],
        "weight": flags["weight"],
        "order": flags["order"],
        "strict": flags["strict"],
        "minRuntime": flags["min_runtime"],
        "maxPriority": flags["max_priority"],
    }
    for name in ("guarantee", "limit", "lend"):
        found[name] = pairs(name, flags[name])
    return {key: value for key, value in found.items() if value is not None}


def pairs(flag: str, entries: tuple[str, ...]) -> dict[str, str] | None:
    """`gpu=8` and `cpu=4` as a mapping; None if there are none."""
    found = {}
    for entry in entries:
        resource, equals, amount = entry.partition("=")
        if not equals or not resource or not amount:
            raise exits.CliError(
                f"--{flag} {entry} cannot be used.", "Write RESOURCE=AMOUNT: gpu=8, memory=64Gi.",
                exits.USAGE,
            )  # fmt: skip
        found[resource] = amount
    return found or None


def told(amounts: Mapping[str, str | int] | Mapping[str, str] | None) -> str:
    return " ".join(f"{name}={amount}" for name, amount in (amounts or {}).items()) or "-"
