"""Amounts of resources on the command line: `gpu=8` into a queue's spec, and back into words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from windlass.cli import exits

_COUNTED = ("running", "submitted")
"""User limits that count runs."""
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
    click.option("--half-life", default=None, metavar="TIME",
                 help="All past use counts, halved in this time; 0s: none counts."),
    click.option("--fair-share-preemption", default=None, metavar="TIME",
                 help="Preempts queues above their share once owed its own for so long."),
    click.option("--user-fair/--no-user-fair", default=None,
                 help="Users take turns by what they hold and have had."),
    click.option("--user-limit", multiple=True, metavar="[USER:]WHAT=N",
                 help="What each user, or one, may have: gpu=4, running=2, submitted=20."),
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
        "halfLife": flags["half_life"],
        "fairSharePreemption": flags["fair_share_preemption"],
        "userFair": flags["user_fair"],
        "userLimits": user_limits(flags["user_limit"]),
    }
    for name in ("guarantee", "limit", "lend"):
        found[name] = pairs(name, flags[name])
    return {key: value for key, value in found.items() if value is not None}


def user_limits(entries: tuple[str, ...]) -> dict[str, Any] | None:
    """`gpu=4`, `running=2`, `ada:gpu=8` as `userLimits` of a queue; None if there are none."""
    found: dict[str, Any] = {}
    for entry in entries:
        left, _, amount = entry.rpartition("=")
        user, _, what = left.rpartition(":")
        limit = found.setdefault("users", {}).setdefault(user, {}) if user else found
        if what in _COUNTED:
            if not amount.isdigit():
                raise exits.CliError(
                    f"--user-limit {entry} cannot be used.", f"Write {what}=N with a whole number.",
                    exits.USAGE,
                )  # fmt: skip
            limit[what] = int(amount)
        else:
            named = pairs("user-limit", (f"{what}={amount}",)) or {}
            limit.setdefault("resources", {}).update(named)
    return found or None


def told_user_limits(limits: Mapping[str, Any] | None) -> str:
    """`gpu=4 running=2; ada: gpu=8`, from the value of an object."""
    if not limits:
        return "-"
    parts = []
    for user, each in (("", limits), *(limits.get("users") or {}).items()):
        counts = {name: each[name] for name in _COUNTED if each.get(name) is not None}
        named = {**(each.get("resources") or {}), **counts}
        if named:
            parts.append((f"{user}: " if user else "") + told(named))
    return "; ".join(parts) or "-"


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
