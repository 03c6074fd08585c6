"""`windlass edit`: opens an object in the user's editor and sends only the changes."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import click

from windlass.cli.lib import (
    base,
    client_session,
    exit_codes,
    kind_names,
    manifests,
    table,
)
from windlass.cli.lib.output import Output
from windlass.kinds import codec
from windlass.kinds.types.meta import Object
from windlass.store import patches


@base.command(examples=("windlass edit queue default", "EDITOR=nano windlass edit run train"))
@click.argument("kind", type=kind_names.KindName())
@click.argument("name", required=False, default="", shell_complete=kind_names.complete_names)
@base.target_options
def edit(out: Output, kind: str, name: str, target: base.Target) -> None:
    """Open an object in your editor (VISUAL, EDITOR, else vi) and send your changes.

    Nothing is sent when the file is unchanged or empty. If the server refuses it, your text is
    kept and the message says where.
    """
    kind, names = kind_names.split(kind, (name,) if name else ())
    chosen = kind_names.kind_of(kind)
    if len(names) != 1:
        raise exit_codes.CliError(
            "Give the name of exactly one object.", f"windlass edit {kind} NAME", exit_codes.USAGE
        )
    label = f"{chosen.resource.singular}/{names[0]}"

    async def fetch(session: client_session.Session) -> dict[str, Any]:
        return codec.to_dict(await session.store.get(chosen, names[0], session.place(chosen)))

    before = client_session.call(target, fetch)
    # Status and metadata that the server writes cannot be edited.
    shown = {key: value for key, value in before.items() if key != "status"}
    text = table.to_yaml(shown)
    edited = _in_editor(text, label)
    if edited == text or not edited.strip():
        out.say(f"{label} unchanged")
        out.result({"action": "unchanged", "object": before}, names=[label])
        return
    try:
        changed = _send(target, chosen, shown, edited, label)
    except exit_codes.CliError as problem:
        kept = _keep(edited)
        raise exit_codes.CliError(
            problem.message,
            f"{problem.remedy}\nYour text is kept in {kept}.".strip(),
            problem.code,
        ) from problem
    out.say(f"{label} edited")
    out.result({"action": "configured", "object": changed}, names=[label])


def _send(
    target: base.Target, kind: type[Object], shown: dict[str, Any], edited: str, label: str
) -> dict[str, Any]:
    """Validates the text and sends the difference; fails if the object changed meanwhile."""
    documents = manifests.parse(edited, label)
    if len(documents) != 1:
        raise exit_codes.CliError(
            "The text must contain exactly one object.", "", exit_codes.INVALID
        )
    (after,) = documents
    patch = patches.merge_diff(shown, after.data)
    metadata = shown["metadata"]
    if after.data.get("metadata", {}).get("name") != metadata["name"] or {
        "kind",
        "apiVersion",
    } & set(patch):
        raise exit_codes.CliError(
            f"The kind and the name of {label} cannot be changed.",
            "Create a new object with `windlass apply`, and delete this one.",
            exit_codes.INVALID,
        )
    manifests.check([(kind, after)])
    patch.setdefault("metadata", {})["resourceVersion"] = metadata["resourceVersion"]

    async def send(session: client_session.Session) -> dict[str, Any]:
        place = metadata.get("namespace", "")
        return codec.to_dict(await session.store.patch(kind, metadata["name"], place, patch=patch))

    return client_session.call(target, send)


def _in_editor(text: str, label: str) -> str:
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
    with tempfile.NamedTemporaryFile(
        "w", suffix=".yaml", prefix=f"windlass-{label.replace('/', '-')}-", delete=False
    ) as file:
        file.write(text)
    path = Path(file.name)
    try:
        subprocess.run([*editor, str(path)], check=True)
        return path.read_text()
    except FileNotFoundError:
        raise exit_codes.CliError(
            f"The editor {editor[0]!r} was not found.",
            "Set EDITOR to one that is installed, for instance EDITOR=nano.",
        ) from None
    except subprocess.CalledProcessError as problem:
        raise exit_codes.CliError(
            f"The editor {editor[0]!r} exited with code {problem.returncode}; nothing was sent.", ""
        ) from None
    finally:
        path.unlink(missing_ok=True)


def _keep(text: str) -> str:
    with tempfile.NamedTemporaryFile(
        "w", suffix=".yaml", prefix="windlass-edit-", delete=False
    ) as file:
        file.write(text)
    return file.name
