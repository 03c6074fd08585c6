"""`windlass edit`: an object in the user's editor, and only the changes sent back."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import click

from windlass.cli import base, checking, client, exits, manifests, rows, words
from windlass.cli.output import Output
from windlass.kinds import wire
from windlass.kinds.meta import Object
from windlass.store import patches


@base.command(examples=("windlass edit queue default", "EDITOR=nano windlass edit run train"))
@click.argument("kind", type=words.KindWord())
@click.argument("name", required=False, default="", shell_complete=words.complete_names)
@base.target_options
def edit(out: Output, kind: str, name: str, target: base.Target) -> None:
    """Open an object in your editor (VISUAL, EDITOR, else vi) and send what you changed.

    Nothing is sent when the file is unchanged or empty. If the server refuses it, your text is
    kept and the message says where.
    """
    kind, names = words.split(kind, (name,) if name else ())
    chosen = words.kind_of(kind)
    if len(names) != 1:
        raise exits.CliError(
            "Name the one object to edit.", f"windlass edit {kind} NAME", exits.USAGE
        )
    label = f"{chosen.resource.singular}/{names[0]}"

    async def fetch(session: client.Session) -> dict[str, Any]:
        return wire.to_dict(await session.store.get(chosen, names[0], session.place(chosen)))

    before = client.call(target, fetch)
    # The server's bookkeeping and what the platform reports are not for editing.
    shown = {key: value for key, value in before.items() if key != "status"}
    text = rows.to_yaml(shown)
    edited = _in_editor(text, label)
    if edited == text or not edited.strip():
        out.say(f"{label} unchanged")
        out.result({"action": "unchanged", "object": before}, names=[label])
        return
    try:
        changed = _send(target, chosen, shown, edited, label)
    except exits.CliError as problem:
        kept = _keep(edited)
        raise exits.CliError(
            problem.message,
            f"{problem.remedy}\nYour text is kept in {kept}.".strip(),
            problem.code,
        ) from problem
    out.say(f"{label} edited")
    out.result({"action": "configured", "object": changed}, names=[label])


def _send(
    target: base.Target, kind: type[Object], shown: dict[str, Any], edited: str, label: str
) -> dict[str, Any]:
    """Checks the text and sends the difference, but only against what was shown."""
    documents = manifests.parse(edited, label)
    if len(documents) != 1:
        raise exits.CliError("The text must hold exactly one object.", "", exits.INVALID)
    (after,) = documents
    patch = patches.merge_diff(shown, after.data)
    metadata = shown["metadata"]
    if after.data.get("metadata", {}).get("name") != metadata["name"] or {
        "kind",
        "apiVersion",
    } & set(patch):
        raise exits.CliError(
            f"The kind and the name of {label} cannot be changed.",
            "Make a new object with `windlass apply`, and delete this one.",
            exits.INVALID,
        )
    checking.check([(kind, after)])
    patch.setdefault("metadata", {})["resourceVersion"] = metadata["resourceVersion"]

    async def send(session: client.Session) -> dict[str, Any]:
        place = metadata.get("namespace", "")
        return wire.to_dict(await session.store.patch(kind, metadata["name"], place, patch=patch))

    return client.call(target, send)


def _in_editor(text: str, label: str) -> str:
    words_ = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.NamedTemporaryFile(
        "w", suffix=".yaml", prefix=f"windlass-{label.replace('/', '-')}-", delete=False
    ) as file:
        file.write(text)
    path = Path(file.name)
    try:
        subprocess.run([*words_, str(path)], check=True)
        return path.read_text()
    except FileNotFoundError:
        raise exits.CliError(
            f"The editor {words_[0]!r} was not found.",
            "Set EDITOR to one that is installed, for instance EDITOR=nano.",
        ) from None
    except subprocess.CalledProcessError as problem:
        raise exits.CliError(
            f"The editor {words_[0]!r} ended with code {problem.returncode}; nothing was sent.", ""
        ) from None
    finally:
        path.unlink(missing_ok=True)


def _keep(text: str) -> str:
    with tempfile.NamedTemporaryFile(
        "w", suffix=".yaml", prefix="windlass-edit-", delete=False
    ) as file:
        file.write(text)
    return file.name
