"""Studies over the platform API: what a caller sends is bounded and checked before it is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.server.conftest import Served
from windlass.ledger.service import Ledger

BASE = "/apis/platform.windlass.dev/v1alpha1/namespaces/default/studies"
OWNER = "a-driver"


@pytest.fixture
async def studies(served: Served, tmp_path: Path) -> Served:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    served.app.use_ledger(ledger)
    assert (await served.call("POST", BASE, {"name": "sweep", "body": {}})).code == 201
    return served


@pytest.mark.parametrize("value", ["9" * 5000, "10000001", "-1", "x"])
async def test_a_number_that_is_too_large_is_refused(studies: Served, value: str) -> None:
    for path in (f"{BASE}?limit={value}", f"{BASE}/sweep/trials?limit={value}",
                 f"{BASE}/sweep/trials?after={value}"):  # fmt: skip
        assert (await studies.call("GET", path)).code == 400


@pytest.mark.parametrize("name", ["sweep\n", "Sweep", "", "a" * 41])
async def test_a_study_has_a_name_that_its_path_can_have(studies: Served, name: str) -> None:
    assert (await studies.call("POST", BASE, {"name": name, "body": {}})).code == 400


async def test_trials_are_read_in_pages(studies: Served) -> None:
    await studies.call("POST", f"{BASE}/sweep/claim", {"owner": OWNER})
    trials = [{"number": number, "state": "running", "body": {}} for number in range(5)]
    stored = await studies.call("PUT", f"{BASE}/sweep/trials", {"owner": OWNER, "trials": trials})
    assert stored.code == 204
    page = await studies.call("GET", f"{BASE}/sweep/trials?limit=2&after=1")
    assert [each["number"] for each in page.body["items"]] == [2, 3]
