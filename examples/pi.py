"""Estimates pi with several members: each throws darts of its own, member 0 adds them up.

Needs nothing but Python. Members meet in a folder that all of them see:

    windlass run -w 2 -- python examples/pi.py --members 2 --share /tmp/pi
"""

from __future__ import annotations

import argparse
import os
import random
import time
from pathlib import Path

ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, required=True, help="how many there are")
    parser.add_argument("--share", type=Path, required=True, help="a folder that all of them see")
    parser.add_argument("--darts", type=int, default=200_000, help="of each member and round")
    options = parser.parse_args()
    index = int(os.environ["WINDLASS_INDEX"])
    options.share.mkdir(parents=True, exist_ok=True)
    hits = throw(index, options.darts)
    report = options.share / f"{os.environ['WINDLASS_RUN']}-{index}"
    unfinished = report.with_suffix(".new")
    unfinished.write_text(str(hits))
    unfinished.rename(report)
    if index == 0:
        gather(options.share, options.members, options.darts)


def throw(index: int, darts: int) -> int:
    """Hits inside the quarter circle, over all rounds."""
    dice = random.Random(index)
    hits = 0
    for number in range(1, ROUNDS + 1):
        hits += sum(dice.random() ** 2 + dice.random() ** 2 <= 1.0 for _ in range(darts))
        print(f"round {number}/{ROUNDS}: pi is about {4 * hits / (number * darts):.5f}", flush=True)
        time.sleep(0.3)
    return hits


def gather(share: Path, members: int, darts: int) -> None:
    """Waits for everybody's report and adds them up."""
    reports = [share / f"{os.environ['WINDLASS_RUN']}-{index}" for index in range(members)]
    while not all(report.exists() for report in reports):
        time.sleep(0.05)
    hits = sum(int(report.read_text()) for report in reports)
    total = members * ROUNDS * darts
    print(f"all {members} members: pi is about {4 * hits / total:.5f} from {total} darts")


if __name__ == "__main__":
    main()
