"""Kinds and names as people type them: `runs`, `wr`, `run/train`; with the nearest valid name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from windlass.cli.lib import exit_codes

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from windlass.kinds.types.meta import Object


_COMPLETION_SECONDS = 1.5


class KindName(click.ParamType[str]):
    """A kind by any of its names; `split` separates `run/train`."""

    name = "kind"

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from windlass.kinds import registry

        plurals = sorted(kind.resource.plural for kind in registry.ALL)
        return [CompletionItem(word) for word in plurals if word.startswith(incomplete.lower())]


def complete_names(
    ctx: click.Context,
    param: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[CompletionItem]:
    """Names of objects of the kind before them (or of runs), if a server answers quickly."""
    import asyncio

    from click.shell_completion import CompletionItem

    from windlass.cli.lib import base, client_session

    given = ctx.params
    places = {key: str(given.get(key) or "") for key in ("state", "kubeconfig", "context")}
    target = base.Target(**places, namespace=str(given.get("namespace") or ""))

    async def ask(session: client_session.Session) -> list[str]:
        kind = kind_of(str(given.get("kind") or "run"))
        async with asyncio.timeout(_COMPLETION_SECONDS):
            return [obj.name for obj in (await session.store.list(kind, session.place(kind))).items]

    try:
        names = client_session.call(target, ask)
    except (exit_codes.CliError, TimeoutError):
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def kind_of(word: str) -> type[Object]:
    """The kind with this name, plural or short name."""
    from windlass.kinds import registry

    found = registry.by_word().get(word.lower())
    if found is not None:
        return found
    raise exit_codes.CliError(
        f"There is no kind {word!r}.{did_you_mean(word, registry.by_word())}",
        "Kinds: " + ", ".join(sorted(kind.resource.plural for kind in registry.ALL)) + ".",
        exit_codes.NOT_FOUND,
    )


def kind_of_document(data: dict[str, Any], place: str) -> type[Object]:
    """The kind of an object in a file."""
    from windlass.kinds import registry

    version, word = data.get("apiVersion"), data.get("kind")
    found = registry.by_kind().get((str(version), str(word)))
    if found is not None:
        return found
    if not version or not word:
        missing = "apiVersion" if not version else "kind"
        raise exit_codes.CliError(
            f"{place}: the object has no {missing}.",
            "For a job write apiVersion: windlass.dev/v1alpha1 and kind: Run.",
            exit_codes.INVALID,
        )
    same = [k for k in registry.ALL if k.resource.kind.lower() == str(word).lower()]
    if same:
        right = same[0].resource
        remedy = f"Write apiVersion: {right.api_version} and kind: {right.kind}."
    else:
        remedy = "Kinds: " + ", ".join(sorted(k.resource.kind for k in registry.ALL)) + "."
    near = did_you_mean(str(word), [k.resource.kind for k in registry.ALL])
    raise exit_codes.CliError(
        f"{place}: Windlass does not know {version} {word}.{near}", remedy, exit_codes.INVALID
    )


def seconds(flag: str, text: str) -> int:
    """`90s`, `5m`, `2h`, `1d` as seconds."""
    from windlass.kinds.values import duration

    try:
        return max(1, round(duration.milliseconds(text) / 1000))
    except ValueError:
        raise exit_codes.CliError(
            f"{flag} {text} is not a duration.", "Write 90s, 5m, 2h or 1d12h.", exit_codes.USAGE
        ) from None


def split(kind_word: str, names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The kind and the names of `run/train` or `run train`."""
    if "/" in kind_word:
        kind_word, _, name = kind_word.partition("/")
        return kind_word, (name, *names)
    return kind_word, names


def did_you_mean(word: str, known: Any) -> str:
    """` Did you mean 'runs'?`; empty if no known name is near."""
    import difflib

    near = difflib.get_close_matches(word.lower(), {str(name).lower(): name for name in known}, 1)
    if not near:
        return ""
    proper = next(str(name) for name in known if str(name).lower() == near[0])
    return f" Did you mean {proper!r}?"
