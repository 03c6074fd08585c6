"""Outputs of Runs: files that replicas wrote, by content.

    GET  .../namespaces/NS/outputs                        how much the namespace has, and may have
    GET  .../namespaces/NS/runs/NAME/outputs              the files of a Run's replicas
    HEAD|GET|PATCH .../runs/NAME/outputs/blobs/sha256:HEX content
    GET  .../runs/NAME/outputs/pod                        for a pod: how its command fares
    POST .../runs/NAME/outputs/check                      for a pod: whether it may keep so much
    POST .../runs/NAME/outputs/publish                    for a pod: its files are complete

A pod sends the content, then a manifest, the list of its files, then `publish` names the manifest.
Only then do readers see it: `status.outputs` of the Run has the manifest of each replica. A
repeated `publish` changes nothing. Blobs live as long as the Run: the sweep keeps what manifests of
Runs name.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Annotated, Any, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from windlass.control.model import members
from windlass.control.runtime import event_recorder
from windlass.kinds.annotations import OUTPUTS_QUOTA
from windlass.kinds.types import core, run
from windlass.kinds.types.field_types import Digest
from windlass.kinds.values import quantity, times
from windlass.server.auth.pod_authorizer import live_pod
from windlass.server.http import bodies
from windlass.server.http.responses import json_response
from windlass.server.platform import paths
from windlass.server.platform.call import PlatformCall
from windlass.server.platform.handlers import blobs
from windlass.server.storage.interfaces import BlobRef, BlobStore
from windlass.store import errors, interface

_log = logging.getLogger(__name__)

USUAL_QUOTA = 50 << 30
"""Bytes of a namespace without the annotation."""
MOST_FILES = 50_000
MOST_MANIFEST = 32 << 20
_MOST_LISTED = 200_000
"""Files of one answer, if they are of several replicas."""
_MOST_BODY = 16 << 10
_REMEMBERED_SECONDS = 10.0
_AT_ONCE = 50
_LONGEST_NAME = 255
COMPONENT = "windlass-server"
T = TypeVar("T")
_STORED_QUOTAS = 4
"""Stored content may be this many times the quota: what no run names any more, such as earlier
checkpoints, stays for two days."""
_MOST_STORED = 500_000
"""Stored files of a namespace."""


class File(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A file or a link of a manifest."""

    path: Annotated[str, Meta(min_length=1, max_length=4096)]
    digest: Digest = ""
    size: Annotated[int, Meta(ge=0)] = 0
    modified: Annotated[int, Meta(ge=0)] = 0
    mode: Annotated[int, Meta(ge=0, le=0o777)] = 0o644
    target: Annotated[str, Meta(max_length=4096)] | None = None


class Manifest(msgspec.Struct):
    files: Annotated[list[File], Meta(max_length=MOST_FILES)]


class _Listed(msgspec.Struct):
    """A manifest that is passed on as it is."""

    files: msgspec.Raw


class Check(msgspec.Struct):
    bytes: Annotated[int, Meta(ge=0)]


class Publication(msgspec.Struct):
    moment: run.OutputMoment
    manifest: Digest | None = None
    message: Annotated[str, Meta(max_length=1000)] = ""


class OutputService:
    def __init__(self, objects: interface.Store, store: BlobStore) -> None:
        self._objects = objects
        self._blobs = store
        self._content = blobs.BlobService(
            objects, store, in_use=self._in_use, refuse_much=self._refuse_much,
            again="list the outputs of the run again",
        )  # fmt: skip
        self._used: dict[str, tuple[float, dict[tuple[str, str], int]]] = {}
        """By namespace: when its Runs were read, and bytes by Run and replica."""
        self.head = self._content.head
        self.get = self._content.get
        self.upload = self._content.upload
        self.sweep_regularly = self._content.sweep_regularly
        self.sweep = self._content.sweep

    # --- for users

    async def usage(self, call: PlatformCall) -> web.Response:
        """What the namespace keeps, and its quota."""
        space = await self._objects.get(core.Namespace, call.namespace)
        used = await self._bytes_of(call.namespace)
        return _reply("OutputUsage", {"bytes": sum(used.values()), "quota": _quota(space)})

    async def list(self, call: PlatformCall) -> web.Response:
        """The files of each replica, or of one."""
        owner, asked = await self._owner(call), call.query.get("replica", "")
        chosen = {
            replica: collected
            for replica, collected in sorted((owner.status.outputs or {}).items())
            if asked in ("", replica)
        }
        count = sum(each.files for each in chosen.values())
        if len(chosen) > 1 and count > _MOST_LISTED:
            raise errors.TooLarge(
                f"run {owner.name} has {count} files of {len(chosen)} replicas, and a list has at "
                f"most {_MOST_LISTED}; name a replica: windlass cp --list "
                f"{owner.name}/{next(iter(chosen))}:"
            )
        items = []
        for replica, collected in chosen.items():
            item: dict[str, Any] = {"replica": replica, **msgspec.to_builtins(collected)}
            item["files"] = []
            if collected.manifest:
                # Was checked when it was published; there may be very many files.
                found = await self._manifest(owner.namespace, collected.manifest, _Listed)
                item["files"] = found.files
            items.append(item)
        return _reply("OutputList", {"run": owner.name, "items": items})

    # --- for pods

    async def pod(self, call: PlatformCall) -> web.Response:
        """How the command of the calling pod fares."""
        pod, _ = await self._caller(call)
        main = pod.spec.containers[0].name
        for status in pod.status.container_statuses or ():
            ended = status.state.terminated if status.state and status.name == main else None
            if ended is not None:
                return _reply("OutputPod", {"exitCode": ended.exit_code})
        return _reply("OutputPod", {})

    async def check(self, call: PlatformCall) -> web.Response:
        """Forbidden if the namespace may not keep so many bytes for this replica."""
        _, key = await self._caller(call)
        asked = await _body(call, Check)
        await self._check_quota(call, key, asked.bytes)
        return web.Response(status=204)

    async def publish(self, call: PlatformCall) -> web.Response:
        """Makes the files of a replica visible, or the reason why there are none."""
        _, key = await self._caller(call)
        given = await _body(call, Publication)
        owner = await self._owner(call)
        replica = f"{key.role}-{key.index}"
        known = (owner.status.outputs or {}).get(replica)
        if known is not None and known.attempt > key.attempt:
            raise errors.Conflict(f"a later attempt of run {owner.name} has published outputs")
        if known is None and len(owner.status.outputs or {}) >= run.OUTPUTS:
            raise errors.Forbidden(
                f"a run keeps outputs of at most {run.OUTPUTS} replicas; write them from fewer"
            )
        entry: dict[str, Any] = {
            "attempt": key.attempt, "moment": given.moment, "message": given.message,
        }  # fmt: skip
        if given.manifest:
            found = await self._manifest(owner.namespace, given.manifest, Manifest)
            size = await self._complete(owner.namespace, found)
            await self._check_quota(call, key, size)
            entry |= {"manifest": given.manifest, "files": len(found.files), "bytes": size}
        if known is None or not _is_same(entry, known):
            await self._write(owner, replica, entry)
        return web.Response(status=204)

    async def _write(self, owner: run.Run, replica: str, entry: dict[str, Any]) -> None:
        entry["at"] = times.seconds(times.now())
        # Without a resourceVersion: only this handler writes the field, one key at a time.
        await self._objects.patch(
            run.Run, owner.name, owner.namespace, subresource="status",
            patch={
                "metadata": {"uid": owner.uid}, "status": {"outputs": {replica: entry}},
            },
        )  # fmt: skip
        if owner.namespace in self._used and "bytes" in entry:
            self._used[owner.namespace][1][owner.uid, replica] = entry["bytes"]
        if entry["message"]:
            await event_recorder.record(
                self._objects, owner, event_recorder.WARNING, "OutputsNotCollected",
                f"{replica}: {entry['message']}", COMPONENT,
            )  # fmt: skip

    # --- content

    async def _manifest(self, namespace: str, digest: str, kind: type[T]) -> T:
        blob = BlobRef(namespace, digest.removeprefix("sha256:"))
        data = await self._blobs.read(blob, MOST_MANIFEST)
        if data is None:
            raise errors.BadRequest(f"the list of files {digest} was not sent, or is too long")
        try:
            return await asyncio.to_thread(msgspec.json.decode, data, type=kind)
        except msgspec.MsgspecError as problem:
            raise errors.BadRequest(f"the list of files is not valid: {problem}") from problem

    async def _complete(self, namespace: str, found: Manifest) -> int:
        """The bytes of all files. BadRequest unless every one was sent, with its size."""
        for each in found.files:
            _check_path(each.path)
        files = [each for each in found.files if each.target is None]
        for start in range(0, len(files), _AT_ONCE):
            some = files[start : start + _AT_ONCE]
            # Beside each other: object storage takes some time for each.
            sizes = await asyncio.gather(*(self._size(namespace, each) for each in some))
            for file, size in zip(some, sizes, strict=True):
                if size != file.size:
                    raise errors.BadRequest(f"the content of {file.path[:200]!r} was not sent")
            await asyncio.sleep(0)
        return sum(each.size for each in files)

    async def _size(self, namespace: str, file: File) -> int | None:
        if not file.digest:
            return None
        return await self._blobs.size(BlobRef(namespace, file.digest.removeprefix("sha256:")))

    async def _in_use(self, store: interface.Store) -> tuple[set[str], set[tuple[str, str]]]:
        """All namespaces, and what the manifests of all Runs name."""
        namespaces = {each.name async for each in blobs.every(store, core.Namespace)}
        named: set[tuple[str, str]] = set()
        async for owner in blobs.every(store, run.Run):
            for collected in (owner.status.outputs or {}).values():
                if collected.manifest:
                    named.add((owner.namespace, collected.manifest))
                    try:
                        found = await self._manifest(owner.namespace, collected.manifest, Manifest)
                    except errors.BadRequest as problem:
                        # The storage lost it: what it named is lost, and the others are not.
                        _log.warning("outputs of run %s: %s", owner.name, problem.message)
                        continue
                    named |= {(owner.namespace, file.digest) for file in found.files}
        return namespaces, named

    # --- the quota

    async def _check_quota(self, call: PlatformCall, key: run.MemberKey, size: int) -> None:
        space = await self._objects.get(core.Namespace, call.namespace)
        quota, used = _quota(space), await self._bytes_of(call.namespace)
        own = (key.run_uid, f"{key.role}-{key.index}")
        others = sum(amount for owner, amount in used.items() if owner != own)
        if others + size > quota:
            raise errors.Forbidden(
                f"team {call.namespace} keeps {_human(others)} of outputs and these are "
                f"{_human(size)} more, above its quota of {_human(quota)}; delete runs "
                "(windlass prune), or ask an administrator for: windlass outputs quota SIZE "
                f"-N {call.namespace}"
            )

    async def _refuse_much(self, blob: BlobRef, more: int) -> None:
        """Before content is received: a pod may send content that it never publishes."""
        quota = _quota(await self._objects.get(core.Namespace, blob.namespace))
        count, size = await self._blobs.usage(blob.namespace)
        if count >= _MOST_STORED:
            has = f"{count} files of outputs, of at most {_MOST_STORED}"
        elif size + more > quota * _STORED_QUOTAS:
            has = (
                f"{_human(size)} of outputs in storage, and {_human(more)} more come, above "
                f"{_STORED_QUOTAS} times its quota of {_human(quota)}"
            )
        else:
            return
        raise errors.Forbidden(
            f"team {blob.namespace} has {has}. What no run names any more is removed after two "
            "days; collect less often, or ask an administrator for: windlass outputs quota SIZE "
            f"-N {blob.namespace}"
        )

    async def _bytes_of(self, namespace: str) -> dict[tuple[str, str], int]:
        """Bytes by Run and replica."""
        known = self._used.get(namespace)
        if known is not None and time.monotonic() - known[0] < _REMEMBERED_SECONDS:
            return known[1]
        found: dict[tuple[str, str], int] = {}
        async for owner in blobs.every(self._objects, run.Run, namespace):
            for replica, collected in (owner.status.outputs or {}).items():
                found[owner.uid, replica] = collected.bytes
        self._used[namespace] = (time.monotonic(), found)
        return found

    # --- the request

    async def _owner(self, call: PlatformCall) -> run.Run:
        return call.run or await self._objects.get(run.Run, call.parameters["run"], call.namespace)

    async def _caller(self, call: PlatformCall) -> tuple[core.Pod, run.MemberKey]:
        """The replica whose pod calls."""
        who = call.identity.pod
        if who is None:
            raise errors.Forbidden("only pods of the run publish its outputs")
        pod = await live_pod(self._objects, who.namespace, who.name, who.uid)
        key = members.key_of(pod) if pod is not None else None
        if pod is None or key is None:
            raise errors.Forbidden("only replicas of the run publish its outputs")
        return pod, key


async def _body(call: PlatformCall, kind: type[Any]) -> Any:
    data = await bodies.read(call.request, _MOST_BODY)
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as problem:
        raise errors.BadRequest(f"the request is not valid: {problem}") from problem


def _check_path(path: str) -> None:
    """Readers refuse a list with a path that leads out of their folder, and with it all outputs."""
    names = path.removeprefix("/").split("/")
    unsafe = any(
        name in ("", ".", "..")
        or "\0" in name
        or "\n" in name
        or len(name.encode()) > _LONGEST_NAME
        for name in names
    )
    if unsafe:
        raise errors.BadRequest(f"{path[:200]!r} is not a path of a file")


def _is_same(entry: dict[str, Any], known: run.CollectedOutputs) -> bool:
    return all(getattr(known, name) == value for name, value in entry.items())


def _quota(space: core.Namespace) -> int:
    text = (space.metadata.annotations or {}).get(OUTPUTS_QUOTA, "")
    try:
        return quantity.whole(text) if text else USUAL_QUOTA
    except ValueError:
        _log.warning("namespace %s: annotation %s is no size", space.name, OUTPUTS_QUOTA)
        return USUAL_QUOTA


def _human(size: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.1f} {unit}"
    return f"{size} bytes"


def _reply(kind: str, content: dict[str, Any]) -> web.Response:
    version = f"{paths.GROUP}/{paths.VERSION}"
    return json_response({"kind": kind, "apiVersion": version, **content})
