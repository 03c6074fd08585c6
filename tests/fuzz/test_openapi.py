"""Every operation of the OpenAPI documents, called with what its schema allows (schemathesis)."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, given

from tests.faults.driver import Door
from tests.faults.seeds import SOAK
from tests.fuzz.wire import Wire, judge, judged
from tests.harness.embedded import EmbeddedServer

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

DOCUMENTS = [
    "api/v1",
    "apis/coordination.k8s.io/v1",
    "apis/rbac.authorization.k8s.io/v1",
    "apis/scheduling.k8s.io/v1",
    "apis/windlass.dev/v1alpha1",
]
ENDLESS = {"watch", "follow"}
"""Parameters that keep an answer open; watches have tests of their own."""


@pytest.fixture(scope="module")
def authority(fuzzed: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = yaml.safe_load(fuzzed.kubeconfig.read_text())
    data = config["clusters"][0]["cluster"]["certificate-authority-data"]
    file = tmp_path_factory.mktemp("authority") / "ca.crt"
    file.write_bytes(base64.b64decode(data))
    return file


def test_the_documents_are_all_that_is_served(wire: Wire) -> None:
    index = json.loads(judge(wire.request(b"GET", b"/openapi/v3")).body)
    served = {
        path for path in index["paths"] if path.count("/") >= (1 if path[:4] == "api/" else 2)
    }
    assert set(DOCUMENTS) <= served


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_operation_with_what_its_schema_allows(
    document: str, wire: Wire, fuzzed: EmbeddedServer, authority: Path
) -> None:
    door = Door.to(fuzzed)
    raw = json.loads(judge(wire.request(b"GET", f"/openapi/v3/{document}".encode())).body)
    called = 0
    for found in schemathesis.openapi.from_dict(raw).get_all_operations():
        operation = found.ok()
        called += 1

        @hypothesis.settings(
            max_examples=150 if SOAK else 2,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def call(case: Any) -> None:
            for parameter in ENDLESS & set(case.query or {}):
                del case.query[parameter]
            judged(case, door, authority)

        call()
    assert called >= 6
