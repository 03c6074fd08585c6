"""How the indices of an array fare, read from its status."""

import pytest

from windlass.kinds import array_results
from windlass.kinds.types import meta, run


def array() -> run.Run:
    status = run.ArrayStatus(
        succeeded_indices="0-1", stopped_indices="4", active_indices="5",
        failures=[run.IndexFailure(reason="CodeFailed", exit_code=3, indices="2-3")],
    )  # fmt: skip
    return run.Run(
        metadata=meta.ObjectMeta(name="sweep"),
        spec=run.RunSpec(
            roles=[run.Role(command=["true"])], array=run.Array(indices="0-5,9", parallelism=1)
        ),
        status=run.RunStatus(array=status),
    )


def test_each_index_has_its_end():
    found = [(each.index, each.phase, each.exit_code) for each in array_results.results(array())]
    assert found == [
        (0, "Succeeded", 0), (1, "Succeeded", 0), (2, "Failed", 3), (3, "Failed", 3),
        (4, "Stopped", None), (5, "", None), (9, "", None),
    ]  # fmt: skip
    assert array_results.started(array()) == [0, 1, 2, 3, 4, 5]


def test_an_index_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="has no index 7: its indices are 0-5,9"):
        array_results.result_of(array(), 7)
    plain = array()
    plain.spec.array = None
    with pytest.raises(ValueError, match="is not an array"):
        array_results.phase_of(plain, 0)
