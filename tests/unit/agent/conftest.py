import json

import pytest

from tests.unit.agent import nodes
from windlass.agent import pods, podstatus, procfs, progress, shim
from windlass.kinds import kubernetes, meta
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore


@pytest.fixture
async def node(tmp_path, monkeypatch):
    monkeypatch.setattr(pods, "_RETRY", 0.05)
    monkeypatch.setattr(podstatus, "FIRST_RESTART", 0.01)
    monkeypatch.setattr(progress, "EVERY", 0.02)
    api = await Api.open(tmp_path / "store.db")
    made = nodes.Node(EmbeddedStore(api), tmp_path)
    await made.store.create(kubernetes.Namespace(metadata=meta.ObjectMeta(name="team")))
    made.start()
    yield made
    await made.stop()
    await api.close()
    for record in tmp_path.rglob(shim.SHIM):
        process = procfs.Process(**json.loads(record.read_text()))
        if procfs.is_alive(process):
            procfs.kill([process.pid])


@pytest.fixture(scope="session", autouse=True)
def nursery():
    yield nodes.NURSERY
    nodes.NURSERY.close()
