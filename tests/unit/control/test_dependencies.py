"""What a Run that waits for others sees of them, and when it starts or ends."""

import pytest

from tests.unit.control.build import NAMESPACE, a_run, assigned, in_phase, pod
from windlass.control.convert import run_workloads
from windlass.control.dependencies import controller
from windlass.control.model import dependencies
from windlass.control.model.run_view import View
from windlass.control.runs import controller as runs_controller
from windlass.control.runs import state_machine
from windlass.control.runtime.informers import InformerFactory
from windlass.kinds.reasons import Reason
from windlass.kinds.types import run
from windlass.kinds.values import times

NOW = times.parse("2026-01-01T10:00:00Z")


def waiting(*after: str, name: str = "train", known: list[run.Dependency] | None = None) -> run.Run:
    """A Run with `prep:any` and such in its `spec.after`."""
    pairs = [each.partition(":") for each in after]
    listed = [run.After(run=name, when=when or "ok") for name, _, when in pairs]
    made = a_run(name, after=listed)
    made.status.after = known
    return made


def see(owner: run.Run, *others: run.Run) -> run.Run:
    """The same Run after the controller has looked."""
    by_name = {each.name: each for each in others}
    owner.status.after = dependencies.observed(owner, by_name.get)
    return owner


@pytest.mark.parametrize(
    ("when", "phase", "state"),
    [
        ("ok", "Succeeded", "Met"), ("ok", "Failed", "Never"), ("ok", "Stopped", "Never"),
        ("any", "Succeeded", "Met"), ("any", "Failed", "Met"), ("any", "Stopped", "Met"),
        ("failed", "Succeeded", "Never"), ("failed", "Failed", "Met"), ("failed", "Stopped", "Met"),
        ("ok", "Running", "Waiting"), ("any", "Stopping", "Waiting"),
        ("failed", "Queued", "Waiting"),
    ],
)  # fmt: skip
def test_the_end_of_a_run_meets_a_condition_as_in_slurm(when, phase, state):
    owner = see(waiting(f"prep:{when}"), in_phase(a_run("prep"), phase))
    assert dependencies.state(owner) == state


def test_all_conditions_must_be_met():
    prep, load = in_phase(a_run("prep"), "Succeeded"), in_phase(a_run("load"), "Running")
    owner = see(waiting("prep", "load"), prep, load)
    assert dependencies.hold(owner) == (
        Reason.WAITING_FOR_DEPENDENCY, "run load (Running) must succeed first",
    )  # fmt: skip
    see(owner, prep, in_phase(load, "Succeeded"))
    assert dependencies.hold(owner) is None


def test_an_outcome_stays_when_the_run_is_deleted_or_replaced():
    owner = see(waiting("prep"), in_phase(a_run("prep"), "Succeeded"))
    assert dependencies.state(see(owner)) == "Met"
    another = in_phase(a_run("prep"), "Failed")
    another.metadata.uid = "another"
    assert dependencies.state(see(owner, another)) == "Met"


@pytest.mark.parametrize(("when", "state"), [("ok", "Never"), ("any", "Met"), ("failed", "Met")])
def test_a_run_that_is_deleted_before_its_end_did_not_succeed(when, state):
    owner = see(waiting(f"prep:{when}"), in_phase(a_run("prep"), "Running"))
    assert dependencies.state(owner) == "Waiting"
    assert dependencies.state(see(owner)) == state


def test_a_run_of_the_same_name_is_another_one():
    owner = see(waiting("prep"), in_phase(a_run("prep"), "Running"))
    another = in_phase(a_run("prep"), "Succeeded")
    another.metadata.uid = "another"
    assert (
        dependencies.failure(see(owner, another)) == "run prep was deleted before it could succeed"
    )


def test_a_run_that_never_existed_is_waited_for():
    owner = see(waiting("prep"))
    assert dependencies.hold(owner) == (
        Reason.WAITING_FOR_DEPENDENCY, "run prep (does not exist yet) must succeed first",
    )  # fmt: skip


def test_runs_that_wait_for_each_other_never_start():
    first, second, third = (
        waiting("b", name="a"), waiting("c:any", name="b"), waiting("a", name="c"),
    )  # fmt: skip
    see(first, first, second, third)
    assert dependencies.failure(first) == "it waits for run b, which waits for it"
    alone = waiting("alone", name="alone")
    assert dependencies.state(see(alone, alone)) == "Never"


def test_a_waiting_run_is_held_and_takes_no_place():
    owner = see(waiting("prep"), in_phase(a_run("prep"), "Running"))
    assert run_workloads.waits(owner)
    held = run_workloads.read_workload(owner, "default").hold_reason
    assert held is not None
    assert held[0] is Reason.WAITING_FOR_DEPENDENCY
    see(owner, in_phase(a_run("prep"), "Succeeded"))
    assert run_workloads.read_workload(owner, "default").hold_reason is None


def test_a_run_that_can_never_start_ends_and_so_do_those_behind_it():
    owner = see(waiting("prep"), in_phase(a_run("prep"), "Failed"))
    assert not runs_controller.only_waits(owner)
    move = state_machine.plan(View(owner, (), 1, NOW)).move
    assert move is not None
    assert (move.to, move.reason, move.message) == (
        "Failed", "DependencyFailed", "run prep is Failed, and this run needs it to succeed",
    )  # fmt: skip
    behind = see(waiting("train", name="after"), in_phase(owner, "Failed"))
    assert dependencies.state(behind) == "Never"


def test_a_met_dependency_changes_nothing_about_a_run_that_has_started():
    owner = assigned(in_phase(waiting("prep"), "Running"))
    see(owner, in_phase(a_run("prep"), "Succeeded"))
    assert state_machine.plan(View(owner, [pod(owner)], 1, NOW)).move is None


def test_a_run_expires_only_when_its_dependents_have_noted_its_end():
    prep = in_phase(a_run("prep"), "Succeeded")
    owner = waiting("prep")
    assert not dependencies.is_recorded(prep, owner)
    assert dependencies.is_recorded(prep, see(owner, prep))
    assert dependencies.is_recorded(prep, in_phase(waiting("prep"), "Stopped"))


async def test_the_controller_records_what_the_store_says(store):
    await store.create(a_run("prep"))
    await store.create(waiting("prep", "nope"))
    seen = InformerFactory(store)
    reconciler = controller.Dependencies(store, seen.runs)

    async def look() -> list[tuple[str, str]]:
        await reconciler.reconcile((NAMESPACE, "train"))
        found = await store.get(run.Run, "train", NAMESPACE)
        return [(each.phase, each.outcome) for each in found.status.after]

    async with seen:
        assert await look() == [("Queued", "Waiting"), ("", "Waiting")]
        # Not in the cache yet: the store is asked.
        await store.create(a_run("nope"))
        assert (await look())[1] == ("Queued", "Waiting")
    await store.patch(
        run.Run, "prep", NAMESPACE, patch={"status": {"phase": "Failed"}}, subresource="status"
    )
    seen = InformerFactory(store)
    reconciler = controller.Dependencies(store, seen.runs)
    async with seen:
        assert await look() == [("Failed", "Never"), ("Queued", "Waiting")]
        prep = await store.get(run.Run, "prep", NAMESPACE)
        (known,) = controller.dependents(seen.runs, prep)
        assert known.name == "train"
