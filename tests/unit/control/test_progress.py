import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.control import build
from windlass.control.runs import progress
from windlass.kinds.types import run


def reporting(owner: run.Run, text: str, index: int = 0):
    pod = build.pod(owner, index=index)
    pod.metadata.annotations = {progress.ANNOTATION: text}
    return pod


def test_the_first_member_that_reports_speaks_for_the_run():
    owner = build.a_run("job", build.role(replicas=3))
    pods = [build.pod(owner), reporting(owner, '{"fraction": 0.5}', 2),
            reporting(owner, '{"fraction": 0.25, "metrics": {"loss": 1}}', 1)]  # fmt: skip
    assert progress.of_run(owner, pods) == run.Progress(fraction=0.25, metrics={"loss": 1.0})
    owner.status.attempt = 1
    assert progress.of_run(owner, pods) is None


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", '{"fraction": 2}', '{"fraction": -1}', '{"metrics": {"a": "b"}}',
     '{"metrics": {"a": 1e999}}', '{"metrics": {"' + "a" * 64 + '": 1}}', "[" * 10**5,
     '{"fraction": 0.1, "x": "' + "y" * 20000 + '"}'],
)  # fmt: skip
def test_what_is_no_progress_is_refused(text):
    with pytest.raises(progress.ProgressError):
        progress.read(text)


@given(st.text(max_size=50))
def test_whatever_a_job_writes_it_is_progress_or_an_error_of_ours(text):
    try:
        found = progress.read(text)
    except progress.ProgressError:
        return
    assert isinstance(found, run.Progress)
