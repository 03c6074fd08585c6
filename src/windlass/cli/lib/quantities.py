"""Amounts of resources on the command line: `gpu=8` into a queue's spec, and back into text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from windlass.cli.lib import exit_codes

_COUNTED = ("running", "submitted")
"""User limits that count runs."""
QUEUE_OPTIONS = (
    click.option("--parent", default=None, metavar="QUEUE", help="The parent queue."),
    click.option(
        "--guarantee",
        multiple=True,
        metavar="RESOURCE=N",
        help="Amount that its runs always get back: gpu=8, cpu=64.",
    ),
    click.option("--limit", multiple=True, metavar="RESOURCE=N", help="Upper limit of its usage."),
    click.option(
        "--lend",
        multiple=True,
        metavar="RESOURCE=N",
        help="How much of the guarantee others may borrow.",
    ),
    click.option(
        "--weight",
        type=click.IntRange(1, 1000000),
        help="Its share of free capacity, relative to its siblings.",
    ),
    click.option(
        "--order",
        type=click.Choice(("fifo", "lifo", "priority", "fair", "shortest", "attained")),
        help="Order of its waiting runs.",
    ),
    click.option(
        "--strict/--no-strict", default=None, help="The first waiting run blocks those behind it."
    ),
    click.option(
        "--min-runtime",
        default=None,
        metavar="TIME",
        help="Its runs are not preempted before this.",
    ),
    click.option(
        "--max-priority",
        type=click.IntRange(0, 1000),
        help="Upper limit of the priority of its runs.",
    ),
    click.option(
        "--half-life",
        default=None,
        metavar="TIME",
        help="Half-life of past usage in fair sharing; 0s ignores past usage.",
    ),
    click.option(
        "--fair-share-preemption",
        default=None,
        metavar="TIME",
        help="Preempt queues above their share after this queue was below its own for so long.",
    ),
    click.option(
        "--user-fair/--no-user-fair",
        default=None,
        help="Share fairly between users, by current and past usage.",
    ),
    click.option(
        "--user-limit",
        multiple=True,
        metavar="[USER:]WHAT=N",
        help="Limit per user, or of one USER: gpu=4, running=2, submitted=20.",
    ),
)
"""Options for the fields of a queue; `spec` reads them."""


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
                raise exit_codes.CliError(
                    f"--user-limit {entry} cannot be used.", f"Write {what}=N with a whole number.",
                    exit_codes.USAGE,
                )  # fmt: skip
            limit[what] = int(amount)
        else:
            _pair("user-limit", entry)
            named = pairs("user-limit", (f"{what}={amount}",)) or {}
            limit.setdefault("resources", {}).update(named)
    return found or None


def format_user_limits(limits: Mapping[str, Any] | None) -> str:
    """`gpu=4 running=2; ada: gpu=8`, from the value of an object."""
    if not limits:
        return "-"
    parts = []
    for user, each in (("", limits), *(limits.get("users") or {}).items()):
        counts = {name: each[name] for name in _COUNTED if each.get(name) is not None}
        named = {**(each.get("resources") or {}), **counts}
        if named:
            parts.append((f"{user}: " if user else "") + format_amounts(named))
    return "; ".join(parts) or "-"


def labels(flag: str, entries: tuple[str, ...]) -> dict[str, str] | None:
    """`row=b` as a mapping; None if there are none."""
    return dict(_pair(flag, entry, "KEY=VALUE") for entry in entries) or None


def pairs(flag: str, entries: tuple[str, ...]) -> dict[str, str] | None:
    """`gpu=8` and `cpu=4`, or `gpu=8,cpu=4`, as a mapping; None if there are none."""
    found = dict(_pair(flag, part) for entry in entries for part in entry.split(","))
    amount = found.get("memory", "0")
    if amount not in ("0", "0Gi", "0Mi"):
        check_memory(f"--{flag} memory", amount)
    return found or None


def _pair(
    flag: str, entry: str, right: str = "RESOURCE=AMOUNT: gpu=8, memory=64Gi"
) -> tuple[str, str]:
    resource, equals, amount = entry.partition("=")
    if not equals or not resource or not amount:
        raise exit_codes.CliError(
            f"--{flag} {entry} cannot be used.", f"Write {right}.",
            exit_codes.USAGE,
        )  # fmt: skip
    return resource, amount


def check_memory(flag: str, amount: str | None) -> None:
    """Raises if the amount is none, or so small that its unit was forgotten."""
    if amount is None or (flag == "--shm" and amount in ("auto", "0")):
        return
    from windlass.kinds.values import quantity

    if problem := quantity.memory_problem(amount):
        message, _, hint = problem.partition("; ")
        message = message.replace("of memory", "of disk") if flag == "--disk" else message
        raise exit_codes.CliError(
            f"{flag} {amount} {message}.", exit_codes.sentence(hint), exit_codes.USAGE
        )


def format_amounts(amounts: Mapping[str, str | int] | Mapping[str, str] | None) -> str:
    return " ".join(f"{name}={amount}" for name, amount in (amounts or {}).items()) or "-"
