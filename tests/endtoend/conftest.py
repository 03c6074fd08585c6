"""One fixture, two engines: every test of this folder runs on both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import windlass
from tests.endtoend.engines import Cluster, Embedded
from tests.harness import kubelet
from tests.harness.platform import Platform

_ENGINES = ["embedded", pytest.param("kubernetes", marks=pytest.mark.kubelet)]


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
