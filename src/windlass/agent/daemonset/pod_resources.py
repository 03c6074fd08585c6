"""Which devices kubelet gave to the pods of Runs: read from its pod-resources socket, written on
the pods.

The scheduler counts whole devices; kubelet and the device plug-in choose which. Only kubelet knows
the choice, and only on its node, while the pod is there. `agent.cluster` runs this.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windlass.kinds import hostpods, kubernetes
from windlass.store import client, errors

log = logging.getLogger(__name__)

SOCKET = "pod-resources/kubelet.sock"
"""Below kubelet's folder."""
_LIST = "/v1.PodResourcesLister/List"
_SECONDS = 10.0
_TEXT = 2
"""How protobuf marks texts, bytes and messages; nothing else is read here."""

Granted = dict[str, list[str]]
"""Resource -> ids, as the plug-in names them."""


class Devices:
    """Asked now and then; asks kubelet only while a pod waits for its answer."""

    def __init__(self, socket: Path, store: client.Store) -> None:
        self._socket = socket
        self._store = store
        self._told = False

    async def look(self, pods: list[kubernetes.Pod]) -> None:
        """Writes on every pod that has devices which they are, once."""
        waiting = [pod for pod in pods if _is_unknown(pod)]
        if not waiting or not self._socket.exists():
            return
        try:
            found = await ask(self._socket)
        except OSError as problem:
            if not self._told:
                log.warning("kubelet does not say who got which devices: %s", problem)
            self._told = True
            return
        self._told = False
        for pod in waiting:
            granted = found.get((pod.namespace, pod.name))
            if granted:
                await self._write(pod, granted)

    async def _write(self, pod: kubernetes.Pod, granted: Granted) -> None:
        told = json.dumps(granted, sort_keys=True)
        patch = {"metadata": {"uid": pod.uid, "annotations": {hostpods.GRANTED: told}}}
        try:
            await self._store.patch(kubernetes.Pod, pod.name, pod.namespace, patch=patch)
        except errors.ApiError as problem:
            log.warning("the devices of pod %s cannot be written: %s", pod.name, problem.message)


async def ask(socket: Path) -> dict[tuple[str, str], Granted]:
    """(namespace, pod) -> its devices, as kubelet knows them now; OSError if it cannot be asked."""
    # Imported late: most nodes have no devices.
    try:
        import grpc
        import grpc.aio
    except ImportError as problem:
        raise OSError(f"{problem}; install windlass[node]") from problem
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        call: Any = channel.unary_unary(_LIST, response_deserializer=read_list)
        try:
            found: dict[tuple[str, str], Granted] = await call(b"", timeout=_SECONDS)
        except grpc.aio.AioRpcError as problem:
            raise OSError(f"{problem.code().name}: {problem.details()}") from problem
    return found


def read_list(message: bytes) -> dict[tuple[str, str], Granted]:
    """A ListPodResourcesResponse of the API v1."""
    found = {}
    for number, pod in _fields(message):
        if number == 1:
            parts = list(_fields(pod))
            name, namespace = (_first(parts, wanted) for wanted in (1, 2))
            granted: Granted = {}
            for devices in _inner(parts, 3, 2):
                listed = list(_fields(devices))
                ids = granted.setdefault(_first(listed, 1), [])
                ids += [text.decode() for number, text in listed if number == 2]
            found[namespace, name] = {resource: sorted(ids) for resource, ids in granted.items()}
    return found


def _is_unknown(pod: kubernetes.Pod) -> bool:
    """Whether a pod holds devices of a plug-in and does not say which."""
    if pod.status.phase != "Running" or hostpods.GRANTED in (pod.metadata.annotations or {}):
        return False
    resources = (container.resources for container in pod.spec.containers)
    return any("/" in name for each in resources if each for name in each.limits or ())


def _inner(parts: list[tuple[int, bytes]], outer: int, inner: int) -> Iterator[bytes]:
    """Messages of one field of the messages of another."""
    for number, message in parts:
        if number == outer:
            for within, found in _fields(message):
                if within == inner:
                    yield found


def _first(parts: list[tuple[int, bytes]], wanted: int) -> str:
    return next((text.decode() for number, text in parts if number == wanted), "")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of each text or message in a protobuf message; numbers are passed over."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == _TEXT:
            length, at = _varint(message, at)
            yield key >> 3, message[at : at + length]
            at += length
        elif key & 7 == 0:
            _, at = _varint(message, at)
        else:
            at += 8 if key & 7 == 1 else 4


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
