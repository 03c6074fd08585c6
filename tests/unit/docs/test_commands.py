"""Every `windlass` command line in the documentation exists, with its flags."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tools import links
from windlass.cli import main

_CONSOLE = re.compile(r"^\$ (?:\w+=\S+ )*windlass (.+)$", re.MULTILINE)
_INLINE = re.compile(r"`windlass ([a-z][^`]*)`")


def command_lines(text: str) -> Iterator[str]:
    """What follows `windlass`, in console blocks and in code spans."""
    yield from _CONSOLE.findall(text)
    yield from _INLINE.findall(text)


def problem(line: str) -> str:
    """Which word of the command line does not exist, or an empty string."""
    words = re.split(r" #| \||\\\||;", line.partition(" -- ")[0])[0].split()
    command: click.Command = main.root
    while words and isinstance(command, click.Group) and re.fullmatch(r"[a-z-]+,?", words[0]):
        name = words.pop(0).rstrip(",")
        found = command.get_command(click.Context(command), name)
        if found is None:
            return f"there is no command {name}"
        command = found
    known = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
    flags = [
        re.split(r"[=\]]", word.strip("[,"))[0]
        for word in words
        if word.lstrip("[").startswith("-")
    ]
    missing = [flag for flag in flags if _is_flag(flag) and flag not in known | {"-h", "--help"}]
    return f"{command.name} has no {missing[0]}" if missing else ""


def _is_flag(word: str) -> bool:
    return bool(re.fullmatch(r"-[a-zA-Z]|--[a-z][a-z-]+", word))


@pytest.mark.parametrize(
    "page", [str(p.relative_to(links.ROOT)) for p in links.markdown_files(links.ROOT)]
)
def test_commands_on_a_page_exist(page: str) -> None:
    lines = command_lines(Path(links.ROOT / page).read_text())
    found = {line: problem(line) for line in lines}
    assert {line: why for line, why in found.items() if why} == {}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("run -w 2 -- python --nothing", ""),
        ("queue tree -o yaml", ""),
        ("rnu -- true", "there is no command rnu"),
        ("queue shrub", "there is no command shrub"),
        ("submit --faster -- true", "submit has no --faster"),
    ],
)
def test_a_command_that_does_not_exist_is_found(line: str, why: str) -> None:
    assert problem(line) == why
