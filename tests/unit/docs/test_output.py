"""Output on the pages of the guide is what the commands print."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SIMULATE = (ROOT / "docs/guide/simulate.md").read_text()
_BLOCK = re.compile(
    r"```console\n\$ windlass (simulate examples/simulate/one-gang.+)\n((?:.+\n)+)```"
)


def windlass(*words: str) -> str:
    """What the command prints, on both streams."""
    done = subprocess.run(
        [sys.executable, "-m", "windlass.cli.main", *words],
        cwd=ROOT, env={"COLUMNS": "200", "PATH": "/usr/bin:/bin"}, text=True, check=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.stdout


def lines(text: str) -> list[str]:
    return sorted(line.rstrip() for line in text.splitlines() if line.strip())


def test_the_simulation_on_the_page_is_what_the_command_prints() -> None:
    ((command, output),) = _BLOCK.findall(SIMULATE)
    assert lines(windlass(*command.split())) == lines(output)


def test_shares_on_the_page_are_what_the_command_prints() -> None:
    command = re.search(r"\$ windlass (simulate examples/simulate/weights.+) --records", SIMULATE)
    assert command is not None
    (found,) = json.loads(windlass(*command[1].split(), "--json"))["policies"]
    printed = re.findall(r"```json\n(\".+?)```", SIMULATE, re.DOTALL)
    shares, fairness = (json.loads(f"{{{each}}}") for each in printed[:2])
    assert shares == found["by_queue"]
    assert fairness["queues"] == found["fairness"]["queues"]
