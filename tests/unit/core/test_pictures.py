"""docs/reference/scheduling.md shows what the core really answers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from tools import pictures
from windlass.core.model.types import Order, Pack, Policy
from windlass.kinds.reasons import Reason

PAGE = (Path(__file__).parents[3] / "docs/reference/scheduling.md").read_text()
_SHOWN = re.compile(
    r"      (start|stop|hold|promise|wait|wanted|it would|number|promised|when it|[A-Z]\w+:) "
)
_CONTINUED = " " * 12


def shown() -> list[str]:
    """Lines of output on the page, with those that were broken for width put together."""
    found: list[str] = []
    open_line = False
    for line in PAGE.splitlines():
        if open_line and line.startswith(_CONTINUED):
            found[-1] += f" {line.strip()}"
            continue
        open_line = bool(_SHOWN.match(line))
        if open_line:
            found.append(" ".join(line.split()))
    return found


PRINTED = [" ".join(line.split()) for _, line in pictures.all_lines()]


def test_there_is_output_on_the_page() -> None:
    assert len(shown()) > 45


@pytest.mark.parametrize("line", shown())
def test_what_the_page_shows_is_what_is_decided(line: str) -> None:
    # A remark may stand to the right of the output.
    assert any(line == each or line.startswith(f"{each} ") for each in PRINTED)


@pytest.mark.parametrize("word", [*get_args(Order), *get_args(Pack), *Policy.__dataclass_fields__])
def test_every_order_pack_and_policy_is_explained(word: str) -> None:
    assert f"`{word}`" in PAGE or f"**{word}**" in PAGE


@pytest.mark.parametrize("case", pictures.CASES)
def test_every_picture_is_on_the_page(case: str) -> None:
    """At least one line of each; orders are shown in short."""
    if case in ("fifo", "lifo", "shortest"):
        return
    lines = [" ".join(line.split()) for name, line in pictures.all_lines() if name == case]
    page = " ".join(PAGE.split())
    assert any(line in page for line in lines)


def test_reasons_of_verdicts_are_in_the_table() -> None:
    told = {
        Reason.WAITING_FOR_QUOTA, Reason.WAITING_FOR_CAPACITY, Reason.WAITING_FOR_TOPOLOGY,
        Reason.BEHIND_IN_QUEUE, Reason.RESERVED_UNTIL, Reason.NO_SUCH_QUEUE, Reason.IMPOSSIBLE,
        Reason.UNSUPPORTED, Reason.WAITING_TO_RETRY,
    }  # fmt: skip
    assert all(f"`{reason}`" in PAGE for reason in told)
