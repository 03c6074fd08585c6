"""A click group whose commands are modules that are imported only when they are called.

The table holds each command's one-line help, so `--help` and completion import none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from windlass.cli.lib.output import noticing_closed_pipes

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Entry(NamedTuple):
    """The module of a command, and its one-line help."""

    target: str
    """`module:attribute`"""
    help: str


class LazyGroup(click.Group):
    """Commands by name, in titled sections."""

    def __init__(self, sections: dict[str, dict[str, Entry]], **attributes: Any) -> None:
        super().__init__(**attributes)
        self.sections = sections
        self.entries = {name: entry for part in sections.values() for name, entry in part.items()}

    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        with noticing_closed_pipes():  # here click prints help
            return super().make_context(*arguments, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with noticing_closed_pipes():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        module, attribute = entry.target.split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.entries and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.exceptions.NoSuchCommand(name, possibilities=self.entries, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        for title, part in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.help) for name, entry in part.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = list(self._matching(incomplete))
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def _matching(self, incomplete: str) -> Iterator[CompletionItem]:
        from click.shell_completion import CompletionItem

        for name, entry in self.entries.items():
            if name.startswith(incomplete):
                yield CompletionItem(name, help=entry.help)
