"""The pytest plug-in: real servers as fixtures, started once per run and only when asked for.

Loaded by pyproject.toml for every run. The tests of a file go to one worker of pytest-xdist, which
starts their servers once; those on real nodes all go to one worker, for the one cluster that has
them. Tests marked `kubernetes` or `kubelet` are skipped where the binaries are missing and cannot
be built, or where real nodes cannot be had, except under CI=true, where that is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.harness import build, kubelet, outcomes, rest
from tests.harness.control_plane import ControlPlane
from tests.harness.embedded import EmbeddedServer

REPOSITORY = Path(__file__).resolve().parents[2]
CRDS = REPOSITORY / "deploy" / "crds"

USERS = {"alice": ["team-a"], "bob": ["team-b"]}
"""Users without rights of their own that have bearer tokens on the control plane."""

_PREPARE: dict[str, Callable[[Callable[[str], None]], object]] = {
    "kubernetes": build.ensure,
    "kubelet": kubelet.ensure,
    "helm": lambda say: build.ensure(say, [build.HELM_CLIENT]),
}
"""By marker: what its tests need."""
_ON_NODES = ("tests/harness/test_kubelet.py", "tests/endtoend/test_agent_partition.py")
"""Files for real nodes whose tests are not given an engine."""
_PROBLEMS = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the workers of xdist report to their controller
        config.pluginmanager.register(outcomes.Outcomes(), "outcomes")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("kubelet"):
            item.add_marker(pytest.mark.kubernetes)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which tests one worker runs together. (xdist's own groups do nothing under pytest 9.)"""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    # In the order of collection, the short tests of tests/unit come last and fill the end.
    config.option.loadscopereorder = False
    return Together(config, log)


_ALONE = ("tests/faults/", "tests/load/", "tests/properties/")
"""Folders whose tests share no server and take long: each test is a group of its own."""


def group_of(nodeid: str) -> str:
    """The group of a test; one worker runs all of a group. A file's tests share the servers that
    the file starts, so both workers do not start them; real nodes are expensive, so one worker has
    them. The attacks on each engine share a world."""
    file = nodeid.partition("::")[0]
    if file == "tests/hostile/test_campaign.py":
        return f"{file}{nodeid.partition('[')[2].partition(':')[0]}"
    on_nodes = file in _ON_NODES or (file.startswith("tests/endtoend/") and "[kubernetes" in nodeid)
    if on_nodes:
        return "real nodes"
    return nodeid if file.startswith(_ALONE) else file


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds before the first test, so that no test's timeout counts the compiler."""
    problems = session.config.stash.setdefault(_PROBLEMS, {})
    if session.config.option.collectonly:
        return
    for marker, prepare in _PREPARE.items():
        if any(item.get_closest_marker(marker) for item in session.items):
            try:
                prepare(_reporter(session.config))
            except (build.BuildError, kubelet.NoNodesError) as error:
                problems[marker] = str(error)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, problem in item.config.stash.get(_PROBLEMS, {}).items():
        if item.get_closest_marker(marker):
            _cannot_run(problem)


@pytest.fixture(scope="session")
def kubernetes_binaries() -> Path:
    """The folder of kube-apiserver, kubectl, kubelet, etcd, kwok ..."""
    try:
        return build.ensure()
    except build.BuildError as error:
        _cannot_run(str(error))


@pytest.fixture(scope="session")
def control_plane(kubernetes_binaries: Path) -> Iterator[ControlPlane]:
    """A real control plane that serves Windlass' own kinds."""
    with ControlPlane.start(users=USERS, crds=CRDS) as plane:
        yield plane


@pytest.fixture(scope="session")
def control_plane_rest(control_plane: ControlPlane) -> Iterator[rest.Rest]:
    """Plain HTTP to the control plane as its admin."""
    client = rest.from_kubeconfig(control_plane.kubeconfig)
    yield client
    client.close()


@pytest.fixture(scope="session")
def cluster(kubernetes_binaries: Path) -> Iterator[kubelet.Cluster]:
    """A control plane with two real nodes on which pods really run; for tests marked `kubelet`."""
    try:
        started = kubelet.Cluster.start(nodes=2, users=USERS, crds=CRDS)
    except kubelet.NoNodesError as problem:
        _cannot_run(str(problem))
    with started:
        yield started


@pytest.fixture(scope="session")
def embedded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """The embedded API server as a process of its own, with a fresh store."""
    with EmbeddedServer.start(tmp_path_factory.mktemp("embedded")) as server:
        yield server


def _cannot_run(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _reporter(config: pytest.Config) -> Callable[[str], None]:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    return print if terminal is None else terminal.write_line
