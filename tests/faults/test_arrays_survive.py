"""kill -9 of the server while an array runs: each index runs once, and the record has all of them.

The jobs and the agent live on, so nothing that runs is lost: a second start of an index would be a
fault of the array controller. `WINDLASS_SOAK=1` for 40 kills and 400 indices; `WINDLASS_SEED` to
repeat a campaign.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.embedded.test_first_log_line import RUNS, Engine
from tests.faults.seeds import SOAK, campaign_seed
from tests.harness.waiting import until
from windlass.kinds.values import index_set

KILLS, INDICES = (40, 400) if SOAK else (6, 60)
END_SECONDS = 600.0
ENDED = ("Succeeded", "Failed", "Stopped")
FAILING = 7
"""Every seventh index ends with exit code 3."""
SCRIPT = (
    "echo $WINDLASS_ARRAY_INDEX >> {here}/starts; sleep 0.$((WINDLASS_ARRAY_INDEX % 4)); "
    f"test $((WINDLASS_ARRAY_INDEX % {FAILING})) != 0 || exit 3; "
    "echo $WINDLASS_ARRAY_INDEX >> {here}/done"
)


def numbers(path: Path) -> Counter[int]:
    return Counter(map(int, path.read_text().split())) if path.exists() else Counter()


@pytest.mark.timeout(900)
def test_an_array_survives_kills_of_the_server(tmp_path: Path) -> None:
    rng = random.Random(campaign_seed())
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    engine = Engine(tmp_path)
    for name in ("starts", "done"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o666)
    try:
        engine.start()
        array = {"indices": f"0-{INDICES - 1}", "parallelism": 8}
        engine.submit("sweep", SCRIPT, array=array, role={"resources": {"cpu": "50m"}})
        engine.submit("after", "echo after", after=[{"run": "sweep", "when": "failed"}])
        for _ in range(KILLS):
            time.sleep(rng.uniform(0, 1.5))
            engine.server.restart(hard=True)
        until(lambda: engine.status("sweep").get("phase") in ENDED, "the array ends", END_SECONDS)
        status = engine.status("sweep")
        failing = {index for index in range(INDICES) if index % FAILING == 0}
        assert status["phase"] == "Failed", status
        (failure,) = status["array"]["failures"]
        assert (failure["reason"], failure["exitCode"]) == ("CodeFailed", 3)
        assert index_set.parse(failure["indices"]) == index_set.of(failing)
        succeeded = index_set.parse(status["array"]["succeededIndices"])
        assert succeeded == index_set.of(set(range(INDICES)) - failing)
        assert numbers(tmp_path / "starts") == Counter(range(INDICES))
        assert numbers(tmp_path / "done") == Counter(set(range(INDICES)) - failing)
        until(lambda: engine.status("after").get("phase") == "Succeeded", "the next run ends")
        until(
            lambda: (
                [each["metadata"]["name"] for each in engine.get(RUNS)["items"]]
                == ["after", "sweep"]
            ),
            "nothing of the indices is left",
        )
    finally:
        engine.stop()
