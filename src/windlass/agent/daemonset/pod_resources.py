"""Records the devices that kubelet assigned to the pods of Runs: reads kubelet's PodResources API
and annotates the pods.

The scheduler counts whole devices; kubelet and the device plug-in choose the ids. Only kubelet
knows the choice, on its node, while the pod exists. `agent.daemonset.main` runs this.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windlass.kinds.annotations import GRANTED
from windlass.kinds.types import core
from windlass.store import errors, interface

log = logging.getLogger(__name__)

SOCKET = "pod-resources/kubelet.sock"
"""Path in kubelet's folder."""
_LIST = "/v1.PodResourcesLister/List"
_SECONDS = 10.0
_TEXT = 2
"""Protobuf wire type of strings, bytes and messages; no other is read here."""

DeviceIds = dict[str, list[str]]
"""Resource -> device ids of the plug-in."""


class DeviceRecorder:
    """Annotates pods with their devices; calls kubelet only while a pod lacks the annotation."""

    def __init__(self, socket: Path, store: interface.Store) -> None:
        self._socket = socket
        self._store = store
        self._warned = False

    async def update(self, pods: list[core.Pod]) -> None:
        """Annotates every pod that has devices and no annotation."""
        waiting = [pod for pod in pods if _is_unknown(pod)]
        if not waiting or not self._socket.exists():
            return
        try:
            found = await list_pod_resources(self._socket)
        except OSError as problem:
            if not self._warned:
                log.warning("kubelet's PodResources API does not answer: %s", problem)
            self._warned = True
            return
        self._warned = False
        for pod in waiting:
            devices = found.get((pod.namespace, pod.name))
            if devices:
                await self._write(pod, devices)

    async def _write(self, pod: core.Pod, devices: DeviceIds) -> None:
        value = json.dumps(devices, sort_keys=True)
        patch = {"metadata": {"uid": pod.uid, "annotations": {GRANTED: value}}}
        try:
            await self._store.patch(core.Pod, pod.name, pod.namespace, patch=patch)
        except errors.ApiError as problem:
            log.warning("the devices of pod %s are not recorded: %s", pod.name, problem.message)


async def list_pod_resources(socket: Path) -> dict[tuple[str, str], DeviceIds]:
    """(namespace, pod) -> its devices. Raises OSError if kubelet does not answer."""
    # Imported late: most nodes have no devices.
    try:
        import grpc
        import grpc.aio
    except ImportError as problem:
        raise OSError(f"{problem}; install windlass-platform[node]") from problem
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        call: Any = channel.unary_unary(_LIST, response_deserializer=read_list)
        try:
            found: dict[tuple[str, str], DeviceIds] = await call(b"", timeout=_SECONDS)
        except grpc.aio.AioRpcError as problem:
            raise OSError(f"{problem.code().name}: {problem.details()}") from problem
    return found


def read_list(message: bytes) -> dict[tuple[str, str], DeviceIds]:
    """Decodes a ListPodResourcesResponse of the v1 API."""
    found = {}
    for number, pod in _fields(message):
        if number == 1:
            parts = list(_fields(pod))
            name, namespace = (_first(parts, wanted) for wanted in (1, 2))
            assigned: DeviceIds = {}
            for devices in _inner(parts, 3, 2):
                listed = list(_fields(devices))
                ids = assigned.setdefault(_first(listed, 1), [])
                ids += [text.decode() for number, text in listed if number == 2]
            found[namespace, name] = {resource: sorted(ids) for resource, ids in assigned.items()}
    return found


def _is_unknown(pod: core.Pod) -> bool:
    """Whether a running pod has devices of a plug-in and no annotation with their ids."""
    if pod.status.phase != "Running" or GRANTED in (pod.metadata.annotations or {}):
        return False
    resources = (container.resources for container in pod.spec.containers)
    return any("/" in name for each in resources if each for name in each.limits or ())


def _inner(parts: list[tuple[int, bytes]], outer: int, inner: int) -> Iterator[bytes]:
    """The messages in field `inner` of the messages in field `outer`."""
    for number, message in parts:
        if number == outer:
            for within, found in _fields(message):
                if within == inner:
                    yield found


def _first(parts: list[tuple[int, bytes]], wanted: int) -> str:
    return next((text.decode() for number, text in parts if number == wanted), "")


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Field number and bytes of each string or message in a protobuf message; skips numbers."""
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
