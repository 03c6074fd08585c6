"""Results of steps in the ledger's database: claims, leases, results, what explains a miss."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import pytest

from windlass.ledger.db import step_records
from windlass.ledger.db.repository import LedgerRepository
from windlass.ledger.db.step_records import Claim, Result, Step

NOW = 1_800_000_000
KEY, OTHER = "a" * 64, "b" * 64
RESULT = Result("sha256:" + "1" * 64, 3, "AAAA", "", "first execution")


def claim(owner: str = "first-driver", **changed: Any) -> Claim:
    values: dict[str, Any] = {
        "namespace": "red", "pipeline": "nightly", "step": "train", "user": "ann", "owner": owner,
        "shared_parts": {"code train": "1"}, "lease_seconds": 15, **changed,
    }  # fmt: skip
    return Claim(**values)


@pytest.fixture
def ledger(make) -> LedgerRepository:
    return make()


def look(ledger: LedgerRepository, by: Claim, now: int = NOW, key: str = KEY) -> dict[str, Any]:
    return step_records.look_up(ledger, by, [Step(key, 0, {"parameter n": "1"})], now)[key]


def test_the_first_driver_gets_the_claim_and_others_wait(ledger) -> None:
    assert look(ledger, claim())["owner"] == "first-driver"
    assert look(ledger, claim("second-driver"))["owner"] == "first-driver"
    assert look(ledger, claim())["owner"] == "first-driver"


def test_a_result_is_found_by_all_and_never_changes(ledger) -> None:
    look(ledger, claim())
    assert step_records.complete(ledger, "red", KEY, "first-driver", RESULT, NOW + 1)
    found = look(ledger, claim("second-driver"))
    assert (found["state"], found["digest"], found["value"]) == ("done", RESULT.digest, "AAAA")
    assert not step_records.complete(ledger, "red", KEY, "first-driver", RESULT, NOW + 2)


def test_a_claim_that_expired_goes_to_the_next_driver_and_its_first_one_lost_it(ledger) -> None:
    look(ledger, claim())
    assert look(ledger, claim("second-driver"), NOW + 14)["owner"] == "first-driver"
    assert look(ledger, claim("second-driver"), NOW + 15)["owner"] == "second-driver"
    assert not step_records.complete(ledger, "red", KEY, "first-driver", RESULT, NOW + 16)
    assert step_records.complete(ledger, "red", KEY, "second-driver", RESULT, NOW + 16)


def test_a_renewed_claim_lasts_and_a_released_one_is_free(ledger) -> None:
    look(ledger, claim())
    assert step_records.renew(ledger, "red", "first-driver", NOW + 100) == 1
    assert look(ledger, claim("second-driver"), NOW + 50)["owner"] == "first-driver"
    step_records.release(ledger, "red", "second-driver", [])
    assert look(ledger, claim("second-driver"), NOW + 51)["owner"] == "first-driver"
    step_records.release(ledger, "red", "first-driver", [KEY])
    assert look(ledger, claim("second-driver"), NOW + 52)["owner"] == "second-driver"


def test_other_namespaces_find_nothing(ledger) -> None:
    look(ledger, claim())
    step_records.complete(ledger, "red", KEY, "first-driver", RESULT, NOW)
    assert look(ledger, claim(namespace="blue"))["state"] == "claimed"
    assert step_records.listed(ledger, "green", "", "", 10) == []


def test_a_claim_is_given_to_one_of_many_drivers_at_once(ledger) -> None:
    drivers = [f"driver-{number}" for number in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda each: look(ledger, claim(each))["owner"], drivers))
    assert len(set(found)) == 1


def test_similar_results_have_the_parts_of_their_keys(ledger) -> None:
    look(ledger, claim())
    step_records.complete(ledger, "red", KEY, "first-driver", RESULT, NOW)
    look(ledger, claim(shared_parts={"code train": "2"}), key=OTHER)
    found = step_records.similar(ledger, claim(), 0)
    assert found == [{"own": {"parameter n": "1"}, "shared": {"code train": "1"}}]


def test_listed_steps_say_why_they_were_executed(ledger) -> None:
    look(ledger, claim())
    (running,) = step_records.listed(ledger, "red", "nightly", "", 10)
    assert (running["state"], running["ended"]) == ("running", 0)
    step_records.complete(ledger, "red", KEY, "first-driver", RESULT, NOW + 2)
    (done,) = step_records.listed(ledger, "red", "nightly", "train", 10)
    assert (done["state"], done["miss"], done["user"]) == ("done", "first execution", "ann")
    assert step_records.listed(ledger, "red", "other", "", 10) == []


def test_old_results_go_with_their_parts(ledger) -> None:
    look(ledger, claim())
    step_records.complete(ledger, "red", KEY, "first-driver", RESULT, NOW)
    step_records.prune(ledger, NOW + step_records.KEPT_SECONDS)
    assert len(step_records.similar(ledger, claim(), 0)) == 1
    step_records.prune(ledger, NOW + step_records.KEPT_SECONDS + 1)
    assert step_records.similar(ledger, claim(), 0) == []
    assert look(ledger, claim("second-driver"))["owner"] == "second-driver"


def test_a_result_whose_content_is_gone_is_forgotten_and_claims_are_not(ledger) -> None:
    look(ledger, claim())
    look(ledger, claim(), key=OTHER)
    step_records.complete(ledger, "red", KEY, "first-driver", RESULT, NOW)
    step_records.forget(ledger, "red", [KEY, OTHER])
    assert look(ledger, claim("second-driver"))["owner"] == "second-driver"
    assert look(ledger, claim("second-driver"), key=OTHER)["owner"] == "first-driver"
