import dataclasses
import gzip
import math
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.muri import policies, replay
from bench.muri.replay import Job, Trace
from windlass.core.prediction import predictor
from windlass.sim.scenario import BadInput

POLICIES = {
    "SRTF": lambda trace: policies.Shortest(trace, by_gpu_time=False),
    "SRSF": lambda trace: policies.Shortest(trace, by_gpu_time=True),
    "Tiresias": lambda trace: policies.Tiresias(),
    "attained": lambda trace: policies.Attained(),
    "attained-light": lambda trace: policies.Attained(predictor.LIGHT),
    "shortest-nonpreemptive": policies.ShortestNonpreemptive,
}
MIGRATION_FREE = ("attained", "attained-light", "shortest-nonpreemptive")
HEADER = "job_id,num_gpu,submit_time,iterations,model_name,iteration_time"


def job(gpus=1, submitted=0.0, seconds=1000.0, overhead=0.0) -> Job:
    return Job(gpus, submitted, seconds, overhead)


def run(policy: str, *jobs: Job) -> replay.Result:
    trace = Trace("made", jobs)
    return replay.replay(trace, POLICIES[policy](trace))


@pytest.fixture(scope="module")
def trace3() -> Trace:
    path = replay.root() / "trace3.csv.gz"
    if not path.exists() and os.environ.get("CI") != "true":
        pytest.skip(
            f"{path} is not there: it is simulator/trace-data/trace3.csv of "
            "github.com/Rivendile/Muri; point WINDLASS_DATA at the folder above traces/"
        )
    return replay.read(path)


# --- the published protocol ---------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["SRTF", "SRSF", "Tiresias"])
def test_the_replay_gives_the_published_figures(trace3, policy):
    published = replay.read_published(replay.root() / replay.PUBLISHED)["trace3", policy]
    found = replay.replay(trace3, POLICIES[policy](trace3))
    assert found.mean == pytest.approx(published.mean, abs=0.001)
    assert found.makespan == pytest.approx(published.makespan, abs=0.001)
    assert found.p99 == pytest.approx(published.p99, abs=0.001)


def test_an_event_costs_every_running_job_its_overhead_but_not_jobs_that_end():
    jobs = [job(seconds=100, overhead=7), job(seconds=300, overhead=7), job(submitted=50)]
    ends = run("SRSF", *jobs).ends
    assert ends[0] == 100 + 7  # the arrival at 50
    assert ends[1] == 300 + 7 + 7  # the arrival, and the first one's end


@pytest.mark.parametrize(
    ("gpus", "free", "places"),
    [
        (1, [0, 1, 8], ((1, 1),)),
        (8, [7, 7, 8], ((2, 8),)),
        (8, [7, 7, 7], None),
        (16, [8, 7, 8], ((0, 8), (2, 8))),
        (16, [8, 7, 7], None),
        (12, [8, 7, 8], ((0, 8), (2, 4))),
        (12, [8, 4, 7], None),
    ],
)
def test_placement_takes_the_first_node_with_capacity_and_never_splits_small_jobs(
    gpus, free, places
):
    assert replay.first_fit(gpus, free) == places


def test_what_was_published_fits_what_is_read(trace3):
    assert len(trace3.jobs) == 992
    assert sum(each.gpus * each.seconds for each in trace3.jobs) / 64 == pytest.approx(6_563_779, 1)


# --- our policies -------------------------------------------------------------------------------


def test_without_durations_the_average_stays_near_srsf(trace3):
    published = replay.read_published(replay.root() / replay.PUBLISHED)
    for policy in ("attained", "attained-light"):
        found = replay.replay(trace3, POLICIES[policy](trace3))
        assert found.mean < 1.60 * published["trace3", "SRSF"].mean
        assert found.mean < published["trace3", "Themis"].mean
        assert found.migrations == 0
        assert found.preemptions < 2 * len(trace3.jobs)


def test_with_durations_and_without_preemption_it_is_nearer(trace3):
    published = replay.read_published(replay.root() / replay.PUBLISHED)["trace3", "SRSF"]
    found = replay.replay(trace3, POLICIES["shortest-nonpreemptive"](trace3))
    assert found.mean < 1.35 * published.mean
    assert found.preemptions == found.migrations == 0


def test_a_blocked_large_job_is_not_delayed_by_those_that_pass_it():
    long, large = job(8, seconds=1000), job(64, submitted=1, seconds=2000)
    passing = [job(8, submitted=2, seconds=998), job(8, submitted=2, seconds=20_000)]
    result = run("shortest-nonpreemptive", long, large, *passing)
    assert result.ends == (1000, 3000, 1000, 23_000)


def made_trace(seed: int, count: int = 120) -> Trace:
    """Users who submit a few similar jobs in a row, more than the cluster can take at once."""
    chance = random.Random(seed)
    jobs, now = [], 0.0
    while len(jobs) < count:
        gpus, typical = chance.choice([1, 1, 2, 4, 8, 8, 16, 32]), chance.lognormvariate(9, 2)
        for _ in range(chance.randint(1, 8)):
            now += chance.expovariate(1 / 400)
            seconds = typical * chance.lognormvariate(0, 0.3)
            jobs.append(job(gpus, now, seconds, overhead=float(chance.randint(4, 46))))
    return Trace("made", tuple(jobs))


def another_future(trace: Trace, result: replay.Result, turn: float, seed: int) -> Trace:
    """The same until `turn`: a job that has not ended by then runs on for another time, and others
    come later."""
    chance = random.Random(seed)
    jobs = []
    for each, end in zip(trace.jobs, result.ends, strict=True):
        if each.submitted > turn:
            jobs.append(dataclasses.replace(each, seconds=chance.uniform(1, 1e5), gpus=1))
        elif end > turn:
            longer = each.seconds * chance.uniform(1, 50)
            jobs.append(dataclasses.replace(each, seconds=longer))
        else:
            jobs.append(each)
    return Trace("another", tuple(jobs))


def until(result: replay.Result, turn: float) -> list[object]:
    return [entry for entry in result.story if entry[0] <= turn]


@pytest.mark.parametrize("policy", ["attained", "attained-light", "Tiresias"])
@pytest.mark.parametrize("seed", range(4))
def test_a_policy_without_knowledge_decides_the_same_whatever_the_future_brings(policy, seed):
    trace = made_trace(seed)
    result = replay.replay(trace, POLICIES[policy](trace))
    for part in (0.3, 0.6, 0.9):
        turn = trace.jobs[int(part * len(trace.jobs))].submitted
        other = another_future(trace, result, turn, seed)
        again = replay.replay(other, POLICIES[policy](other))
        assert again.ends != result.ends
        assert until(again, turn) == until(result, turn)
        assert len(until(again, turn)) > 20


def test_a_policy_that_knows_durations_does_not():
    trace = made_trace(1)
    result = replay.replay(trace, POLICIES["SRSF"](trace))
    turn = trace.jobs[80].submitted
    other = another_future(trace, result, turn, 1)
    assert until(replay.replay(other, POLICIES["SRSF"](other)), turn) != until(result, turn)


# --- always -------------------------------------------------------------------------------------

JOBS = st.lists(
    st.builds(
        Job,
        gpus=st.sampled_from([1, 2, 3, 4, 8, 12, 16, 32, 64]),
        submitted=st.floats(0, 5000),
        seconds=st.floats(0.1, 50_000),
        overhead=st.sampled_from([0.0, 4.0, 46.0]),
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=60, deadline=None)
@given(JOBS, st.sampled_from(sorted(POLICIES)))
def test_every_job_ends_and_no_node_holds_more_than_it_has(jobs, policy):
    result = run(policy, *jobs)
    for each, end in zip(jobs, result.ends, strict=True):
        assert end >= (each.submitted + each.seconds) * (1 - 1e-9)
    for _, running in result.story:
        held = [0] * replay.NODES
        for number, places in running:
            assert policy == "Tiresias" or sum(n for _, n in places) == jobs[number].gpus
            replay.take(held, places, -1)
        assert max(held) <= replay.GPUS
        assert sum(jobs[number].gpus for number, _ in running) <= replay.NODES * replay.GPUS
    if policy in MIGRATION_FREE:
        assert result.migrations == 0


def test_a_job_that_yields_is_finished_later():
    hog = [job(8, seconds=1e6) for _ in range(8)]
    result = run("attained", *hog, job(1, submitted=50_000, seconds=10))
    assert result.ends[-1] == 50_010
    assert result.preemptions == 1
    assert all(math.isfinite(end) for end in result.ends)


# --- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [lambda raw: raw, gzip.compress])
def test_job_lists_are_read_plain_and_packed(tmp_path, pack):
    path = tmp_path / "mine.csv"
    path.write_bytes(pack(f"{HEADER}\n0,4,2000,1000,shufflenet_v2_x1_0,500\n".encode()))
    trace = replay.read(path)
    assert trace == Trace("mine", (Job(4, 2.0, pytest.approx(507.5), 5.0),))


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (HEADER, "has no jobs"),
        (f"{HEADER}\n0,65,0,1,bert,1", "line 2: num_gpu is 65"),
        (f"{HEADER}\n0,1,0,x,bert,1", "line 2 is not a job"),
        (f"{HEADER}\n0,1,0,-5,bert,1", "line 2: iterations is '-5'"),
        (f"{HEADER}\n0,1,0,-5,bert,-1", "line 2: iterations is '-5'"),
        (f"{HEADER}\n0,1,0,0,bert,1", "line 2: iterations is '0'.*must be more than 0"),
        (f"{HEADER}\n0,1,nan,5,bert,1", "line 2: submit_time is 'nan'"),
        (f"{HEADER}\n0,1,-5,5,bert,1", "line 2: submit_time is '-5'"),
        ("a,b\n1,2", "line 2 is not a job"),
    ],
)
def test_bad_job_lists_are_refused_with_the_line(tmp_path, lines, says):
    path = tmp_path / "bad.csv"
    path.write_text(lines)
    with pytest.raises(BadInput, match=says):
        replay.read(path)
