"""How near the shares of backlogged queues are to their weights, in random worlds.

Each world (`tests/properties/share_worlds.py`) has a tree of queues with weights and guarantees,
gangs and small workloads of 0.1 to 48 h, true and padded estimates, and arrivals at once, steady or
in bursts; every queue stays backlogged. Windlass has default settings. Per world:

- `long_run`: the largest difference of a queue's device-seconds from its part of all that was in
  use, over the whole world;
- `worst_24h`: the lowest fairness index (Jain's, of the least fair siblings, by weight and level)
  over all windows of 24 h, one beginning every hour;
- `slowest_h`: the hours in which every workload ends, and in which every queue is entitled to as
  much as its largest workload uses. A window needs several of them to be fair.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from bench import report
from tests.properties import share_worlds
from tests.properties.share_plays import Played, ratios
from tests.properties.share_worlds import DAY, World

QUICK, ALL = 6, 60
MOST = 800
"""Workloads of a world, about."""
LONG_RUN, FAIR = 0.05, 0.98


def worlds(first: int, count: int, slowest: float) -> list[World]:
    """From this seed on, so many whose slowest repayment takes no longer."""
    found: list[World] = []
    while len(found) < count:
        world = share_worlds.draw(first, MOST)
        first += 1
        if world.slowest <= slowest:
            found.append(world)
    return found


def play(world: World) -> report.Row:
    played = Played(world)
    return {
        "world": world.seed,
        "nodes": world.nodes,
        "queues": len(world.queues),
        "jobs": len(played.outcome.records),
        "slowest_h": round(world.slowest, 2),
        "long_run": round(max(abs(ratio - 1) for ratio in ratios(played).values()), 4),
        "worst_24h": round(min(played.windows(DAY)), 4),
    }


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first world")
    parser.add_argument("--worlds", type=int, metavar="N", help=f"how many (default: {ALL})")
    parser.add_argument(
        "--slowest", type=float, default=3.0, metavar="HOURS", help="only worlds that repay sooner"
    )


def measure(options: report.Options) -> report.Report:
    extra = options.extra
    count = extra.worlds or (QUICK if options.quick else ALL)
    found = report.Report([play(world) for world in worlds(extra.first, count, extra.slowest)])
    errors = [row["long_run"] for row in found.rows]
    indices = [row["worst_24h"] for row in found.rows]
    found.notes.append(
        f"long run: median {statistics.median(errors):.3f}, largest {max(errors):.3f}, "
        f"{sum(error <= LONG_RUN for error in errors)} of {count} worlds within {LONG_RUN}"
    )
    found.notes.append(
        f"index over every window of 24 h: lowest {min(indices):.3f}, "
        f"{sum(index >= FAIR for index in indices)} of {count} worlds at least {FAIR}"
    )
    return found


if __name__ == "__main__":
    sys.exit(report.main("shares", __doc__ or "", measure, configure))
