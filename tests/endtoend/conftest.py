"""One fixture, two engines: every test of this folder runs on both.

On Kubernetes a run takes seconds to start, so of `test_sdk`, which is mostly about what the client
does by itself, only what needs the engine runs there every time; all of it in `make soak`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import windlass
from tests.endtoend.engines import Cluster, Embedded
from tests.harness import kubelet
from tests.harness.platform import Platform

_EVERY_TIME = {
    "test_a_command_runs_and_is_read",
    "test_a_run_that_fails_raises_with_its_reason_and_what_to_do",
    "test_a_function_in_several_workers_returns_a_list_by_rank",
    "test_the_secret_of_a_function_goes_with_its_run",
    "test_submit_takes_any_arguments",
    "test_usage_of_nodes_and_runs_is_reported",
    "test_modules_of_the_working_folder_are_there",
    "test_a_lost_worker_fails_its_call_and_no_other",
    "test_an_executor_sits_out_a_restart_of_the_server",
}
_ENGINES = ["embedded", pytest.param("kubernetes", marks=pytest.mark.kubelet)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("WINDLASS_SOAK") == "1":
        return
    rarely = pytest.mark.skip(reason="what the client does by itself; on Kubernetes in `make soak`")
    for item in items:
        function, _, engine = item.name.partition("[")
        of_sdk = item.path.name == "test_sdk.py" and item.path.parent.name == "endtoend"
        if of_sdk and "kubernetes" in engine and function not in _EVERY_TIME:
            item.add_marker(rarely)


@pytest.fixture(scope="session")
def platform(
    cluster: kubelet.Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Platform]:
    """Windlass on the cluster with real nodes."""
    with Platform.start(cluster, tmp_path_factory.mktemp("platform")) as started:
        yield started


@pytest.fixture(scope="module", params=_ENGINES)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Embedded]:
    made: Embedded
    if request.param == "embedded":
        made = Embedded(tmp_path_factory.mktemp("engine"))
    else:
        made = Cluster(request.getfixturevalue("platform"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def client(engine: Embedded) -> Iterator[windlass.Client]:
    with windlass.Client(**engine.way) as made:
        yield made
