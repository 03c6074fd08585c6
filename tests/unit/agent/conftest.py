import json

import pytest

from tests.unit.agent import nodes
from windlass.agent.pods import pod_status, progress, worker
from windlass.agent.runtime import procfs, shim
from windlass.kinds.types import core, meta
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore


@pytest.fixture
async def node(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "_RETRY", 0.05)
    monkeypatch.setattr(pod_status, "FIRST_RESTART", 0.01)
    monkeypatch.setattr(progress, "EVERY", 0.02)
    api = await Api.open(tmp_path / "store.db")
    made = nodes.Node(EmbeddedStore(api), tmp_path)
    await made.store.create(core.Namespace(metadata=meta.ObjectMeta(name="team")))
    made.start()
    yield made
    await made.stop()
    await api.close()
    for record in tmp_path.rglob(shim.SHIM):
        process = procfs.ProcessIdentity(**json.loads(record.read_text()))
        if procfs.is_alive(process):
            procfs.kill([process.pid])


@pytest.fixture(scope="session", autouse=True)
def zygote():
    yield nodes.ZYGOTE
    nodes.ZYGOTE.close()
