"""The two engines as tests of this folder see them: the same words, whatever is behind them."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import pytest

import windlass
from tests.embedded import test_first_log_line
from tests.embedded.test_first_log_line import PODS, RUNS
from tests.harness import rest
from tests.harness.platform import Platform
from tests.harness.waiting import until


class Embedded(test_first_log_line.Engine):
    """A server and an agent: jobs are processes on this machine's files."""

    images = False

    @property
    def way(self) -> dict[str, Any]:
        """How a client finds it."""
        return {"state": self.server.state}

    def sees(self, folder: Path) -> dict[str, Any]:
        """What a run needs beside the rest to see a folder of the test at its own path."""
        for path in (folder, folder.parent):
            path.chmod(0o755)
        return {}

    def at(self, folder: Path) -> Embedded:
        """The same engine, with another folder that jobs of `submit` see."""
        own = copy.copy(self)
        own.here = folder
        return own

    def node(self) -> dict[str, Any]:
        """The one node that takes pods."""
        (node,) = self.get("/api/v1/nodes")["items"]
        return dict(node)

    def clear(self) -> None:
        """Nothing: each module has an engine of its own."""


class Cluster(Embedded):
    """Windlass on Kubernetes: jobs are containers. One node takes pods, unless `both_nodes`."""

    images = True

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.server = _Server(platform)
        self.here = Path()
        self._open_second(False)

    @property
    def way(self) -> dict[str, Any]:
        return {"kubeconfig": self.platform.kubeconfig}

    def sees(self, folder: Path) -> dict[str, Any]:
        # Jobs run as a user that this machine does not know.
        folder.chmod(0o777)
        return {"mounts": {str(folder): f"host:{folder}"}}

    def submit(self, name: str, script: str, **spec: Any) -> None:
        self.here.chmod(0o777)
        mount = {"from": f"host:{self.here}", "path": str(self.here)}
        super().submit(name, script, **{"mounts": [mount], **spec})

    def node(self) -> dict[str, Any]:
        return dict(self.get(f"/api/v1/nodes/{self.platform.cluster.nodes[0].name}"))

    @contextlib.contextmanager
    def both_nodes(self) -> Any:
        self._open_second(True)
        try:
            yield
        finally:
            self._open_second(False)

    def clear(self) -> None:
        """Names and capacity are free again for the next module."""
        api = self.platform.cluster.plane.rest
        for path in ("/apis/windlass.dev/v1alpha1/namespaces/default/cronruns", RUNS):
            assert api.delete(path).status == 200
        for path in (RUNS, PODS):
            try:
                until(lambda path=path: not self.get(path)["items"], f"{path} is empty", 120)
            except AssertionError as late:
                raise AssertionError(f"{late}: {self._left(path)}") from None

    def _left(self, path: str) -> list[str]:
        """What keeps the objects that are left, for the message of a failure."""
        found = []
        for item in self.get(path)["items"]:
            about, status = item["metadata"], item.get("status") or {}
            keys = ("deletionTimestamp", "deletionGracePeriodSeconds", "finalizers")
            known = {key: about[key] for key in keys if key in about}
            states = [each.get("state") for each in status.get("containerStatuses") or ()]
            found.append(f"{about['name']} {status.get('phase')} {known} {states}")
        return found

    def start(self) -> None:
        """It runs already."""

    def stop(self) -> None:
        self.clear()

    def _open_second(self, wanted: bool) -> None:
        name = self.platform.cluster.nodes[1].name
        path = f"/api/v1/nodes/{name}"
        self.write("PATCH", path, {"spec": {"unschedulable": None if wanted else True}})


class _Server:
    """What tests ask of a server, of the platform's on Kubernetes."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self.state = platform.folder
        self.kubeconfig = platform.kubeconfig

    def rest(self) -> rest.Rest:
        return rest.from_kubeconfig(self.kubeconfig)

    def restart(self, *, hard: bool = True) -> None:
        self._platform.restart_server(hard=hard)


def only_with_images(engine: Embedded, why: str = "about containers") -> Cluster:
    if not isinstance(engine, Cluster):
        pytest.skip(f"one engine only: {why}")
    return engine


def only_on_the_machine(engine: Embedded, why: str) -> None:
    if engine.images:
        pytest.skip(f"one engine only: {why}")


def said(handle: windlass.RunHandle) -> list[str]:
    """What it printed, once it has ended well."""
    try:
        handle.result(120)
    except TimeoutError:
        raise AssertionError(handle.why()) from None
    return [line.text for line in handle.logs()]
