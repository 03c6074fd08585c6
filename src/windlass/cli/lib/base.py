"""What all commands share: output flags, examples in the help, and the target server."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from windlass.cli.lib.output import Mode, Output

Function = TypeVar("Function", bound=Callable[..., Any])


class Command(click.Command):
    """A command with `--json`, `--quiet` and examples at the end of its help."""

    def __init__(self, *args: Any, examples: tuple[str, ...] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = examples
        self.params += [
            _mode_flag(("--json",), "json", "Print JSON on stdout."),
            _mode_flag(("-q", "--quiet"), "quiet", "Print names only."),
        ]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


class Group(click.Group):
    """A command with subcommands; an unknown name is reported with the nearest valid one."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        attributes.setdefault("context_settings", {"help_option_names": ["-h", "--help"]})
        super().__init__(*args, **attributes)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not args[0].startswith("-"):
            raise click.exceptions.NoSuchCommand(args[0], possibilities=self.commands, ctx=ctx)
        return super().resolve_command(ctx, args)


def command(*, examples: tuple[str, ...], **attributes: Any) -> Callable[..., Command]:
    """Makes a function a command; its first argument is the `Output` that it prints to."""

    attributes.setdefault("context_settings", {"help_option_names": ["-h", "--help"]})

    def decorate(function: Callable[..., Any]) -> Command:
        return click.command(cls=Command, examples=examples, **attributes)(click.pass_obj(function))

    return decorate


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """Which API server a command talks to. Empty fields are found as in `cli.lib.server_target`."""

    state: str = ""
    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""

    @property
    def flags(self) -> str:
        """The flags that a suggested command needs to reach the same namespace."""
        return f" -N {self.namespace}" if self.namespace else ""


def state_option(function: Function) -> Function:
    return click.option(
        "--state",
        envvar="WINDLASS_STATE",
        default="",
        metavar="DIR",
        help="State folder of the engine. [default: ~/.windlass]",
    )(function)


def target_options(function: Function) -> Function:
    """Adds the flags that select server and namespace; the command gets one `target`.

    The namespace is -N everywhere, and -n as in kubectl where -n is not the name of a new run.
    """
    return _target_options(function, "-n", "-N")


def making_target_options(function: Function) -> Function:
    """As `target_options`, for commands that create an object: -n is free for its name."""
    return _target_options(function, "-N")


def _target_options(function: Function, *letters: str) -> Function:

    @functools.wraps(function)
    def with_target(
        *args: Any, state: str, kubeconfig: str, context: str, namespace: str, **others: Any
    ) -> Any:
        return function(*args, target=Target(state, kubeconfig, context, namespace), **others)

    decorated = click.option(
        *letters, "--namespace", envvar="WINDLASS_NAMESPACE", default="", help="Namespace (team)."
    )(with_target)
    decorated = click.option(
        "--kubeconfig", default="", metavar="FILE", help="Kubeconfig of the cluster to use."
    )(decorated)
    decorated = click.option("--context", default="", help="Context of the kubeconfig to use.")(
        decorated
    )
    return state_option(decorated)  # type: ignore[return-value]


def _mode_flag(names: tuple[str, ...], mode: Mode, text: str) -> click.Option:
    def choose(ctx: click.Context, _param: click.Parameter, chosen: bool) -> None:
        out = ctx.find_object(Output)
        if chosen and out is not None:
            out.mode = mode

    return click.Option(
        names, is_flag=True, expose_value=False, is_eager=True, callback=choose, help=text
    )
