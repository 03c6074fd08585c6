"""A device plug-in for a real kubelet: devices that exist in name only, granted for real.

Speaks kubelet's device plug-in API v1beta1; messages are put together by hand, as the few that are
needed are small.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path

import grpc

from tests.harness import kubelet, rest, waiting

FOLDER = "/var/lib/kubelet/device-plugins"
_PACKAGE = "v1beta1"


@contextlib.contextmanager
def offering(node: kubelet.Node, api: rest.Rest, resource: str, *devices: str) -> Iterator[None]:
    """The node has these devices meanwhile, and says so."""
    plugin = DevicePlugin(node.path(FOLDER), resource, devices)
    plugin.start()

    def counted() -> bool:
        told = api.get(f"/api/v1/nodes/{node.name}").json["status"]["allocatable"]
        return bool(told.get(resource) == str(len(devices)))

    try:
        waiting.until(counted, "the node counts its devices", 60)
        yield
    finally:
        plugin.stop()


class DevicePlugin:
    """Offers devices of one resource until it is stopped. `folder` is kubelet's, seen from here."""

    def __init__(self, folder: Path, resource: str, devices: Sequence[str]) -> None:
        self._folder = folder
        self._resource = resource
        self._devices = devices
        self._over = threading.Event()
        self._endpoint = resource.replace("/", "-") + ".sock"
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((self._handlers(),))
        self._server.add_insecure_port(f"unix:{folder / self._endpoint}")

    def start(self) -> None:
        """Serves, and tells kubelet so."""
        self._server.start()
        request = _text(1, _PACKAGE) + _text(2, self._endpoint) + _text(3, self._resource)
        with grpc.insecure_channel(f"unix:{self._folder / 'kubelet.sock'}") as channel:
            register = channel.unary_unary(f"/{_PACKAGE}.Registration/Register")
            register(request, timeout=30)

    def stop(self) -> None:
        self._over.set()
        self._server.stop(grace=None).wait()
        (self._folder / self._endpoint).unlink(missing_ok=True)

    def _handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            f"{_PACKAGE}.DevicePlugin",
            {
                "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(lambda *_: b""),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
                "Allocate": grpc.unary_unary_rpc_method_handler(_allocate),
            },
        )

    def _list_and_watch(self, _: bytes, __: grpc.ServicerContext) -> Iterator[bytes]:
        yield b"".join(
            _field(1, _text(1, device) + _text(2, "Healthy")) for device in self._devices
        )
        self._over.wait()


def _allocate(request: bytes, _: grpc.ServicerContext) -> bytes:
    """Nothing is mounted or set: one empty answer for each container that is asked for."""
    answers, at = b"", 0
    while at < len(request):
        length = request[at + 1]  # requests of tests are shorter than 128 bytes
        answers += _field(1, b"")
        at += 2 + length
    return answers


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode())


def _field(number: int, value: bytes) -> bytes:
    if len(value) > 127:
        raise ValueError(f"too long for this plug-in: {value!r}")
    return bytes((number << 3 | 2, len(value))) + value
