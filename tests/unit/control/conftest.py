"""Controllers are tested against the real embedded store; only time and failures are staged."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from windlass.kinds.types import core, meta
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore

NAMESPACE = "team"


@pytest.fixture
async def store(tmp_path) -> AsyncIterator[EmbeddedStore]:
    api = await Api.open(tmp_path / "store.db")
    made = EmbeddedStore(api)
    await made.create(core.Namespace(metadata=meta.ObjectMeta(name=NAMESPACE)))
    yield made
    await api.close()
