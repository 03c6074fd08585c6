"""How often a Run was preempted: it is protected for twice as long each time."""

from tests.unit.control import build
from windlass.control.convert import run_workloads


def test_how_often_a_run_was_preempted_is_counted_from_its_history():
    owner = build.a_run()
    for reason in ("Preempted", "NodeLost", "Preempted"):
        build.in_phase(owner, "Running")
        build.in_phase(owner, "Stopping", reason=reason)
        build.in_phase(owner, "Queued", reason=reason)
    assert run_workloads.read_workload(owner, "team").preemptions == 2
