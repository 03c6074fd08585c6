"""The usage API against its own OpenAPI document: whatever that allows is asked of a real server
(schemathesis), and every answer is one that the document describes. Ledgers on SQLite and on
PostgreSQL, with something in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from prometheus_client import parser
from schemathesis.specs.openapi import checks

from tests.faults.driver import Door
from tests.faults.seeds import SOAK
from tests.fuzz.test_openapi import authority as authority
from tests.fuzz.wire import Wire, judge, judged
from tests.harness.embedded import EmbeddedServer
from tests.harness.waiting import until
from tests.unit.ledger.conftest import server as server

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

TEAM = "default"
PLATFORM = "apis/platform.windlass.dev/v1alpha1"
ASKED = {"usage", "statement", "fleet", "verify"}
CHECKS = (
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def fuzzed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedServer]:
    """One that keeps a ledger, in which a pod holds a part of a machine and a device."""
    environment = {}
    if request.param == "postgresql":
        environment["WINDLASS_LEDGER"] = request.getfixturevalue("server").url("fuzzed")
    state = tmp_path_factory.mktemp("usage") / "state"
    with EmbeddedServer.start(state, flags=(), environment=environment) as made:
        wire = Wire(Door.to(made))
        _fill(wire)

        def told() -> bool:
            answer = judge(wire.request(b"GET", f"/{PLATFORM}/usage".encode()))
            return answer.status == 200 and bool(json.loads(answer.body)["rows"])

        until(told, "the pod is in the ledger")
        until(lambda: b"windlass_fleet_devices{" in _page(wire), "the fleet was looked at")
        wire.close()
        yield made
        log = made.process.log.read_text(errors="replace")
        assert "Traceback" not in log, log[-6000:]


def _fill(wire: Wire) -> None:
    def put(method: bytes, path: str, body: dict[str, Any]) -> None:
        kind = {b"Content-Type": b"application/merge-patch+json"} if method == b"PATCH" else {}
        answer = wire.request(method, path.encode(), json.dumps(body).encode(), kind)
        assert answer.status in (200, 201), answer.summary

    amounts = {"cpu": "8", "memory": "32Gi", "windlass.dev/gpu": "2"}
    put(b"POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})
    put(b"PATCH", "/api/v1/nodes/n1/status", {"status": {"allocatable": amounts}})
    asked = {"requests": {"cpu": "1", "windlass.dev/gpu": "1"}, "limits": {"windlass.dev/gpu": "1"}}
    container = {"name": "c", "image": "x", "resources": asked}
    spec = {"nodeName": "n1", "containers": [container]}
    put(
        b"POST", f"/api/v1/namespaces/{TEAM}/pods", {"metadata": {"name": "notebook"}, "spec": spec}
    )


def _page(wire: Wire) -> bytes:
    return judge(wire.request(b"GET", b"/metrics")).body


def test_prometheus_own_parser_reads_every_number_of_the_reports(wire: Wire) -> None:
    families = {each.name: each for each in parser.text_string_to_metric_families(
        _page(wire).decode()
    )}  # fmt: skip
    reported = {
        "windlass_fleet_devices", "windlass_team_devices", "windlass_usage_device_hours",
        "windlass_usage_cost_units", "windlass_idle_device_hours", "windlass_idle_cost_units",
        "windlass_wall_cost_units", "windlass_budget_used_ratio", "windlass_budget_state",
        "windlass_budget_runs_out_timestamp_seconds", "windlass_ledger_intervals",
        "windlass_ledger_behind", "windlass_ledger_failing",
    }  # fmt: skip
    assert reported <= set(families)
    for each in families.values():
        assert each.documentation
        assert each.type in ("counter", "gauge", "histogram")
        keys = [(sample.name, *sorted(sample.labels.items())) for sample in each.samples]
        assert len(keys) == len(set(keys)), each.name
    there = {
        (sample.labels["device"], sample.labels["state"]): sample.value
        for sample in families["windlass_fleet_devices"].samples
    }
    assert {state for device, state in there if device == "machine"} >= {
        "present", "held", "idle", "borrowed", "lent", "waiting",
    }  # fmt: skip
    assert there["gpu", "present"] == 2


def test_every_answer_is_what_the_document_says(
    wire: Wire, fuzzed: EmbeddedServer, authority: Path
) -> None:
    door = Door.to(fuzzed)
    raw = json.loads(judge(wire.request(b"GET", f"/openapi/v3/{PLATFORM}".encode())).body)
    seen: dict[str, set[int]] = {}
    for found in schemathesis.openapi.from_dict(raw).get_all_operations():
        operation = found.ok()
        if operation.path.rsplit("/", 1)[-1] not in ASKED:
            continue
        codes = seen.setdefault(operation.path.rsplit("/", 1)[-1], set())

        @hypothesis.settings(
            max_examples=300 if SOAK else 8,
            deadline=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.example(case=operation.Case(path_parameters={"namespace": TEAM}))
        @given(case=operation.as_strategy())
        def call(case: Any) -> None:
            if case.path_parameters:
                case.path_parameters["namespace"] = TEAM
            response = judged(case, door, authority)
            codes.add(response.status_code)  # noqa: B023 - called before the next of them
            case.validate_response(response, checks=CHECKS)

        call()
    assert set(seen) == ASKED
    assert all(200 in codes for codes in seen.values()), seen


def test_every_other_operation_answers_as_the_document_says(
    wire: Wire, fuzzed: EmbeddedServer, authority: Path
) -> None:
    door = Door.to(fuzzed)
    raw = json.loads(judge(wire.request(b"GET", f"/openapi/v3/{PLATFORM}".encode())).body)
    called = 0
    for found in schemathesis.openapi.from_dict(raw).get_all_operations():
        operation = found.ok()
        if operation.path.rsplit("/", 1)[-1] in ASKED:
            continue
        called += 1

        @hypothesis.settings(
            max_examples=150 if SOAK else 4,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(), existing=st.booleans())
        def call(case: Any, existing: bool) -> None:
            if existing and "namespace" in case.path_parameters:
                case.path_parameters["namespace"] = TEAM
            case.validate_response(judged(case, door, authority), checks=CHECKS)

        call()
    assert called >= 30


@pytest.mark.parametrize(
    "query",
    [
        "usage?user=%00", "usage?top=%C2%B2", "usage?top=-1",
        "usage?timeZone=Europe", "usage?timeZone=..%2F..%2Fetc%2Fpasswd", "usage?timeZone=%00",
        "usage?month=9999-12", "usage?by=team,nonsense", "fleet?step=1e9", "fleet?format=pdf",
        "verify?since=yesterday", "usage?since=0001-01-01T00:00:00%2B14:00",
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_with_a_remedy(wire: Wire, query: str) -> None:
    answer = judge(wire.request(b"GET", f"/{PLATFORM}/{query}".encode()))
    assert answer.status == 400, answer.summary
