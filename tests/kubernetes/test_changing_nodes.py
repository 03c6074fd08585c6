"""Nodes that change under what is placed: cordoned, with fewer devices, not ready, gone. On a real
control plane, for other people's pods and gangs and for Runs: nothing is put there any more, what
runs is not harmed by us, a gang is handled as a whole, and waiting pods show why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness import players, rest, waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.parts import Part
from tests.harness.plugin import CRDS
from tests.kubernetes.external_pods import Json, World, gang, node, pod
from tests.kubernetes.external_pods import world as world
from windlass.control.runtime import informers

pytestmark = pytest.mark.kubernetes
GPU = "nvidia.com/gpu"
RUNS = "/apis/windlass.dev/v1alpha1/namespaces/default/runs"
PATIENCE = 180
"""Kubernetes' own collector lets pods of a node that is gone stay for a minute."""


@pytest.fixture(scope="module")
def running(kubernetes_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("changing")
    with ControlPlane.start(crds=CRDS) as plane:
        made = World(plane, folder)
        made.make("/api/v1/namespaces", {"metadata": {"name": informers.NAMESPACE}})
        own = rest.from_kubeconfig(plane.kubeconfig)
        playing = players.Players(own)
        playing.start()
        parts = [Part(plane.kubeconfig, folder, name) for name in ("scheduler", "controllers")]
        try:
            yield made
        finally:
            for part in parts:
                part.process.stop()
            playing.stop()
            own.close()


def change(world: World, name: str, **has: str) -> None:
    """What a node says that it has, from now on."""
    amounts = {key.replace("__", "/").replace("_", "."): value for key, value in has.items()}
    status = {"capacity": amounts, "allocatable": amounts}
    answer = world.rest.merge(f"/api/v1/nodes/{name}/status", {"status": status})
    assert answer.status == 200, answer.summary


def cordon(world: World, name: str, closed: bool) -> None:
    answer = world.rest.merge(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": closed or None}})
    assert answer.status == 200, answer.summary


def ready(world: World, name: str, status: str) -> None:
    told = {"type": "Ready", "status": status}
    answer = world.rest.merge(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [told]}})
    assert answer.status == 200, answer.summary


def gpus(name: str, count: int, **more: object) -> Json:
    made = pod(name, requests={GPU: str(count)}, terminationGracePeriodSeconds=0, **more)
    made["spec"]["containers"][0]["resources"]["limits"] = {GPU: str(count)}
    return made


def gpu_gang(name: str, size: int, count: int) -> list[Json]:
    # Long enough that an API server that is busy binds all of it before.
    short = {"windlass.dev/gang": name, "windlass.dev/gang-size": str(size),
             "windlass.dev/gang-timeout": "20s"}  # fmt: skip
    made = [gpus(f"{name}-{number}", count) for number in range(size)]
    for each in made:
        each["metadata"]["annotations"] = short
    return made


def noticed(world: World, probe: Json, reason: str, words: str = "") -> None:
    """Returns when the scheduler knows what became of a node. It hears of nodes and of pods on two
    watches, so what could be placed is submitted after that; a probe that never fits tells."""
    world.submit(probe)
    world.why(probe["metadata"]["name"], reason, words=words)
    world.remove(probe["metadata"]["name"])


def bound(world: World, *names: str) -> list[str]:
    return [name for name in names if world.node_of(name)]


def gone(world: World, name: str) -> bool:
    return world.rest.get(f"{world.pods()}/{name}").status == 404


@pytest.mark.parametrize("close", ["cordon", "not ready"])
def test_a_closed_node_takes_no_pod_and_no_part_of_a_gang_until_it_opens(
    world: World, close: str
) -> None:
    def closed(is_closed: bool) -> None:
        if close == "cordon":
            cordon(world, "n1", is_closed)
        else:
            ready(world, "n1", "False" if is_closed else "True")

    world.add_nodes(node("n1", cpu="12"), node("n2", cpu="2"))
    world.submit(
        pod("before", requests={"cpu": "2"}, nodeSelector={"kubernetes.io/hostname": "n1"})
    )
    assert world.is_bound("before") == "n1"
    closed(True)
    closed_words = "node n1 is cordoned" if close == "cordon" else "node n1 is not ready"
    noticed(world, pod("probe", requests={"cpu": "12"}), "WaitingForCapacity", closed_words)
    world.submit(pod("alone", requests={"cpu": "4"}), *gang("g", 2, requests={"cpu": "2"}))
    assert closed_words in world.why("alone", "WaitingForCapacity")
    assert closed_words in world.why("g-0", "WaitingForCapacity")
    # A pod that fits elsewhere shows that a decision was made after all that.
    world.submit(pod("small", requests={"cpu": "1"}))
    assert world.is_bound("small") == "n2"
    assert bound(world, "alone", "g-0", "g-1") == []
    assert world.node_of("before") == "n1", "what runs there is left alone"
    closed(False)
    for name in ("alone", "g-0", "g-1"):
        assert world.is_bound(name)


def test_a_node_that_lost_devices_gets_no_more_than_are_left_and_a_gang_is_handled_as_a_whole(
    world: World,
) -> None:
    world.add_nodes(node("n1", **{"nvidia.com__gpu": "4"}))
    first = gpu_gang("first", 2, 2)
    world.submit(*first)
    assert {world.is_bound("first-0"), world.is_bound("first-1")} == {"n1"}
    for name in ("first-0", "first-1"):
        # A node that has fewer already would refuse it.
        waiting.until(
            lambda name=name: world.get(name)["status"]["phase"] == "Running", "it runs", PATIENCE
        )
    change(world, "n1", nvidia_com__gpu="3", cpu="8", memory="32Gi", pods="110")
    world.submit(gpus("one", 1), *gpu_gang("second", 2, 1))
    assert not gone(world, "first-0"), "it is whole: nobody has a reason to end it"
    assert "gpu" in world.why("one", "WaitingForCapacity")
    world.why("second-0", "WaitingForCapacity")
    assert not gone(world, "first-0")
    assert not gone(world, "first-1"), "kubelet decides about what runs on a device that is gone"
    # Its node ends a member, as kubelets do that find no device when a container starts again.
    for name in ("one", "second-0", "second-1"):
        world.remove(name)
    world.remove("first-1")
    world.submit(first[1])
    waiting.until(lambda: gone(world, "first-0"), "what is left of the gang is evicted", PATIENCE)
    world.submit(first[0])
    assert "gpu" in world.why("first-0", "Impossible")
    world.submit(gpus("three", 3))
    assert world.is_bound("three") == "n1", "what is left is given away"
    assert bound(world, "first-0", "first-1") == []
    world.remove("three")
    change(world, "n1", nvidia_com__gpu="4", cpu="8", memory="32Gi", pods="110")
    assert {world.is_bound("first-0"), world.is_bound("first-1")} == {"n1"}


def test_a_node_that_vanishes_takes_its_pods_along_and_the_gang_is_completed_elsewhere(
    world: World,
) -> None:
    world.add_nodes(node("n1", cpu="4"), node("n2", cpu="4"))
    template = pod("", requests={"cpu": "4"}, restartPolicy="Never")
    template["spec"]["terminationGracePeriodSeconds"] = 0
    job = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "pair"},
        "spec": {
            "completionMode": "Indexed", "parallelism": 2, "completions": 2, "backoffLimit": 6,
            "template": {
                "metadata": {"annotations": {"windlass.dev/gang-timeout": "10m"}},
                "spec": template["spec"],
            },
        },
    }  # fmt: skip
    world.make("/apis/batch/v1/namespaces/default/jobs", job)

    def places() -> dict[str, str]:
        chosen = "job-name=pair"
        found = world.rest.get(world.pods(), labelSelector=chosen).json["items"]
        alive = [p for p in found if p["status"].get("phase") not in ("Failed", "Succeeded")]
        return {
            p["metadata"]["uid"]: p["spec"].get("nodeName", "")
            for p in alive
            if not p["metadata"].get("deletionTimestamp")
        }

    def on(*names: str) -> bool:
        return sorted(places().values()) == sorted(names)

    waiting.until(lambda: on("n1", "n2"), "both are placed", PATIENCE)
    (survivor,) = (uid for uid, where in places().items() if where == "n1")
    assert world.rest.delete("/api/v1/nodes/n2").status == 200
    world.add_nodes(node("n3", cpu="4"))
    waiting.until(lambda: on("n1", "n3"), "the gang is whole again", PATIENCE)
    assert places()[survivor] == "n1", "who was not hit goes on"
    world.rest.delete(
        "/apis/batch/v1/namespaces/default/jobs/pair", {"propagationPolicy": "Background"}
    )
    waiting.until(lambda: not places(), "its pods are gone", PATIENCE)


def cpus_on(world: World) -> dict[str, int]:
    """Of all nodes that are there, what pods of one look hold."""
    there = {each["metadata"]["name"] for each in world.rest.get("/api/v1/nodes").json["items"]}
    held: dict[str, int] = {}
    for each in world.rest.get(world.pods()).json["items"]:
        where = each["spec"].get("nodeName", "")
        if where in there:
            asked = each["spec"]["containers"][0]["resources"]["requests"]["cpu"]
            held[where] = held.get(where, 0) + int(asked)
    return held


def test_a_gang_whose_node_vanishes_comes_before_waiting_runs_or_is_evicted_as_a_whole(
    world: World,
) -> None:
    short = {"windlass.dev/gang-timeout": "5s"}
    pods = gang("g", 2, requests={"cpu": "4"}, annotations=short, terminationGracePeriodSeconds=0)

    def vanishes(name: str) -> None:
        """Its pods are collected, and made again by their controller."""
        (lost,) = (each for each in pods if world.node_of(each["metadata"]["name"]) == name)
        assert world.rest.delete(f"/api/v1/nodes/{name}").status == 200
        world.remove(lost["metadata"]["name"])
        world.submit(lost)

    def comes(what: str, condition: Callable[[], bool]) -> None:
        def seen() -> bool:
            held = cpus_on(world)
            assert all(count <= 4 for count in held.values()), held
            return condition()

        waiting.until(seen, what, PATIENCE)

    def places() -> list[str]:
        return sorted(world.node_of(name) for name in bound(world, "g-0", "g-1"))

    world.add_nodes(node("n1", cpu="4"), node("n2", cpu="4"))
    world.submit(*pods)
    comes("the gang is there", lambda: places() == ["n1", "n2"])
    world.submit(pod("rival", requests={"cpu": "4"}, terminationGracePeriodSeconds=0))
    world.why("rival", "WaitingForCapacity")
    vanishes("n2")
    world.add_nodes(node("n3", cpu="4"))
    comes("the gang is completed first", lambda: places() == ["n1", "n3"])
    assert world.node_of("rival") == ""
    vanishes("n3")
    comes("what was left of it gives way", lambda: world.node_of("rival") == "n1")
    assert places() == []
    world.submit(*(each for each in pods if gone(world, each["metadata"]["name"])))
    assert "cpu" in world.why("g-0", "Impossible")
    world.add_nodes(node("n4", cpu="4"))
    world.why("g-1", "WaitingForCapacity")
    assert places() == [], "one node would be half of it"
    world.remove("rival")
    comes("it is whole again", lambda: places() == ["n1", "n4"])


# --- Runs -----------------------------------------------------------------------------------------


def submit(world: World, name: str, replicas: int, role: Json, run_for: str = "") -> None:
    notes = {players.RUN_FOR: run_for} if run_for else {}
    worker = {
        "command": ["true"], "replicas": replicas, "resources": {"cpu": "1", "memory": "64Mi"},
        **role,
    }  # fmt: skip
    world.make(RUNS, {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": name},
        "spec": {"roles": [worker], "overrides": {"annotations": notes}},
    })  # fmt: skip


def status(world: World, name: str) -> Json:
    found: Json = world.rest.get(f"{RUNS}/{name}").json.get("status", {})
    return found


def comes(world: World, name: str, phase: str, reason: str = "") -> Json:
    def there() -> bool:
        told = status(world, name)
        return told.get("phase") == phase and reason in ("", told.get("reason"))

    try:
        waiting.until(there, f"{name} is {phase} {reason}", PATIENCE)
    except AssertionError as never:
        raise AssertionError(f"{never}: {status(world, name)}") from None
    return status(world, name)


@pytest.fixture
def runs(world: World) -> Iterator[World]:
    yield world
    for each in world.rest.get(RUNS).json["items"]:
        world.rest.delete(f"{RUNS}/{each['metadata']['name']}")
    waiting.until(lambda: not world.rest.get(RUNS).json["items"], "no run is left", PATIENCE)


def test_runs_on_a_node_that_is_closed_or_lost_devices_go_on_and_others_wait(runs: World) -> None:
    world = runs
    world.add_nodes(node("n1", **{"nvidia.com__gpu": "4"}))
    one = {"devices": [{"kind": "gpu"}]}
    submit(world, "holds", 2, one)
    comes(world, "holds", "Running")
    cordon(world, "n1", True)
    noticed(world, gpus("probe", 4), "WaitingForCapacity", "node n1 is cordoned")
    submit(world, "later", 2, one, run_for="0.2")
    told = comes(world, "later", "Queued", "WaitingForCapacity")
    assert "node n1 is cordoned" in told["message"], told
    cordon(world, "n1", False)
    comes(world, "later", "Succeeded")
    change(world, "n1", nvidia_com__gpu="3", cpu="8", memory="32Gi", pods="110")
    noticed(world, gpus("probe", 4), "Impossible")
    submit(world, "two", 2, one, run_for="0.2")
    told = comes(world, "two", "Queued", "WaitingForCapacity")
    assert "1 fit now" in told["message"], told
    submit(world, "four", 4, one)
    assert "gpu" in comes(world, "four", "Queued", "Impossible")["message"]
    held = status(world, "holds")
    assert (held["phase"], held.get("attempt", 0)) == ("Running", 0)
    change(world, "n1", nvidia_com__gpu="4", cpu="8", memory="32Gi", pods="110")
    comes(world, "two", "Succeeded")


def test_a_run_whose_node_vanishes_starts_again_elsewhere_as_a_whole(runs: World) -> None:
    world = runs
    world.add_nodes(node("n1", cpu="4"), node("n2", cpu="4"))
    submit(world, "pair", 2, {"resources": {"cpu": "3", "memory": "64Mi"}})
    comes(world, "pair", "Running")
    world.add_nodes(node("n3", cpu="4"))
    assert world.rest.delete("/api/v1/nodes/n2").status == 200

    def moved() -> bool:
        told = status(world, "pair")
        placed = told.get("assignment", {}).get("members", {}).get("worker", ())
        where = {member["node"] for member in placed}
        return told["phase"] == "Running" and told.get("attempt") == 1 and where == {"n1", "n3"}

    waiting.until(moved, "both members run again", PATIENCE)
    steps = status(world, "pair")["history"]
    assert any(step.get("reason") == "NodeLost" for step in steps), steps
