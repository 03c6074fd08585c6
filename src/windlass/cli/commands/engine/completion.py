"""`windlass completion`: the completion script for a shell."""

from __future__ import annotations

import click

from windlass.cli.lib import base
from windlass.cli.lib.output import Output

_INSTALL = {
    "bash": "windlass completion bash > ~/.local/share/bash-completion/completions/windlass",
    "zsh": 'windlass completion zsh > "${fpath[1]}/_windlass"',
    "fish": "windlass completion fish > ~/.config/fish/completions/windlass.fish",
}


@base.command(
    examples=(
        'eval "$(windlass completion bash)"',
        *_INSTALL.values(),
    )
)
@click.argument("shell", type=click.Choice(sorted(_INSTALL)))
@click.pass_context
def completion(ctx: click.Context, out: Output, shell: str) -> None:
    """Print the completion script for a shell.

    It completes commands, flags and kinds, and names of objects if a server answers.
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:  # pragma: no cover - click ships all three
        raise click.UsageError(f"click has no completion for {shell}", ctx)
    script = found(ctx.find_root().command, {}, "windlass", "_WINDLASS_COMPLETE").source()
    out.raw(script.rstrip())
    if out.human:
        import sys

        if sys.stdout.isatty():
            out.hint(f"Install it: {_INSTALL[shell]}")
