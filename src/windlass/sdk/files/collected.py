"""Outputs of a run: files that were collected from its replicas and are kept by content."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import posixpath
import urllib.parse
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Any

from windlass.kinds.types import run
from windlass.sdk import platform_api
from windlass.sdk.files import places
from windlass.sdk.files.places import Entry
from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore

OWN_FOLDER = "/windlass/outputs"
"""`$WINDLASS_OUTPUTS`, as manifests name it."""


@dataclasses.dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that a replica wrote."""

    replica: str
    """`role-index`."""
    path: str
    """Relative to the working folder, or absolute."""
    size: int
    digest: str
    """SHA-256 of the content; "" for a symbolic link."""
    modified: int
    mode: int
    target: str = ""
    """Where a symbolic link leads."""


async def files_of(store: KubernetesStore, owner: run.Run, replica: str = "") -> list[OutputFile]:
    """All files that are kept of a run, or of one replica."""
    query = [("replica", replica)] if replica else []
    status, _, body = await store.raw("GET", _path(owner), query=query)
    answer = platform_api.json_object(body)
    if status >= 300:
        raise errors.from_status(answer, status)
    return [
        _file(item["replica"], each)
        for item in answer.get("items", ())
        for each in item.get("files", ())
    ]


async def content(
    store: KubernetesStore, owner: run.Run, digest: str
) -> AsyncGenerator[bytes, None]:
    """The bytes of a file, verified at the end."""
    seen = hashlib.sha256()
    pieces = store.text(f"{_path(owner)}/blobs/{digest}")
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            seen.update(piece)
            yield piece
    if f"sha256:{seen.hexdigest()}" != digest:
        raise errors.Unavailable("an output was not sent whole; copy again")


class CollectedFiles:
    """The outputs of one replica, as a source of a copy."""

    def __init__(
        self, store: KubernetesStore, owner: run.Run, replica: str,
        files: Iterable[OutputFile] | None = None,
    ) -> None:  # fmt: skip
        """`files`: if they are known already."""
        self._store = store
        self._owner = owner
        self._replica = replica
        self._files = None if files is None else {each.path: each for each in files}

    async def list(self, path: str) -> list[Entry]:
        """Folders are those of the files' paths."""
        base = _normal(path)
        found: dict[str, Entry] = {}
        for name, file in sorted((await self._read()).items()):
            relative = relative_to(base, name)
            if relative is None:
                continue
            parts = relative.split("/") if relative else []
            for count in range(len(parts)):
                folder = "/".join(parts[:count])
                found.setdefault(folder, Entry(folder, "folder", 0, file.modified, 0o755))
            kind: places.Kind = "link" if file.target else "file"
            found[relative] = Entry(
                places.checked(relative), kind, file.size, file.modified, file.mode
            )
        return list(found.values())

    async def target(self, path: str) -> str:
        return (await self._read())[_normal(path)].target

    async def read(self, path: str, offset: int, size: int) -> AsyncIterator[bytes]:
        file = (await self._read())[_normal(path)]
        del size  # a copy asks for the rest
        left = offset
        async with contextlib.aclosing(content(self._store, self._owner, file.digest)) as pieces:
            async for piece in pieces:
                rest = piece[left:]
                left = max(0, left - len(piece))
                if rest:
                    yield rest

    async def _read(self) -> dict[str, OutputFile]:
        if self._files is None:
            found = await files_of(self._store, self._owner, self._replica)
            self._files = {each.path: each for each in found if each.replica == self._replica}
        return self._files


def _path(owner: run.Run) -> str:
    name = urllib.parse.quote(owner.name, safe="")
    return f"{platform_api.PATH}/namespaces/{owner.namespace}/runs/{name}/outputs"


def _file(replica: str, item: dict[str, Any]) -> OutputFile:
    path = str(item["path"])
    places.checked(path.removeprefix("/"))
    return OutputFile(
        replica, path, int(item.get("size", 0)), str(item.get("digest", "")),
        int(item.get("modified", 0)), int(item.get("mode", 0o644)), str(item.get("target") or ""),
    )  # fmt: skip


def _normal(path: str) -> str:
    found = posixpath.normpath(path) if path else ""
    return "" if found == "." else found


def is_below(base: str, name: str) -> bool:
    return relative_to(base, name) is not None


def relative_to(base: str, name: str) -> str | None:
    """The path relative to a base; None if it is not below it."""
    if base == "":
        return None if name.startswith("/") else name
    if name == base:
        return ""
    prefix = base.rstrip("/") + "/"
    return name[len(prefix) :] if name.startswith(prefix) else None
