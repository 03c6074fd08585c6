"""Gangs without an annotation: pods of JobSets, of Kubeflow's jobs and of Spark, on a real control
plane. How many belong together is learned from the owner; they start whole or not at all. And an
owner whose pods are no gang: KServe's."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.control_plane import ControlPlane
from tests.harness.plugin import CRDS
from tests.harness.waiting import until
from tests.kubernetes import operators
from tests.kubernetes.external_pods import PATIENCE, Json, World, node, pod
from tests.kubernetes.external_pods import world as world
from windlass.control.runtime import informers

pytestmark = pytest.mark.kubernetes
SHORT = {"windlass.dev/gang-timeout": "3s"}
Owner = Callable[..., operators.Made]


@pytest.fixture(scope="module")
def running(kubernetes_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ControlPlane.start(crds=CRDS) as plane:
        world = World(plane, tmp_path_factory.mktemp("owners"))
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        world.make(definitions, *operators.DEFINITIONS)
        for each in operators.DEFINITIONS:
            group, version = each["spec"]["group"], each["spec"]["versions"][0]["name"]
            path = f"/apis/{group}/{version}/{each['spec']['names']['plural']}"
            until(lambda path=path: plane.rest.get(path).status == 200, "it is served")
        world.make("/api/v1/namespaces", {"metadata": {"name": informers.NAMESPACE}})
        process = world.start()
        yield world
        process.kill()


@pytest.fixture
def owners(world: World) -> Iterator[list[operators.Made]]:
    """Whose pods are made again until they themselves are gone."""
    made: list[operators.Made] = []
    yield made
    for each in made:
        each.remove()
    gone = lambda: not world.rest.get(operators.JOBS).json["items"]  # noqa: E731
    until(gone, "their Jobs are gone", PATIENCE)


def job(name: str, at_once: int, in_all: int) -> Json:
    spec = operators.template(SHORT, restartPolicy="Never")
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {
            "completionMode": "Indexed", "parallelism": at_once, "completions": in_all,
            "template": spec,
        },
    }  # fmt: skip


def evict(world: World, name: str) -> None:
    """As `kubectl drain` does it."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    answer = world.rest.post(f"{world.pods()}/{name}/eviction", body)
    assert answer.status == 201, answer.summary


@pytest.mark.parametrize("owner", operators.OWNERS, ids=lambda each: each.__name__)
def test_pods_of_an_owner_start_whole_or_not_at_all_and_go_together_if_one_stays_lost(
    world: World, owners: list[operators.Made], owner: Owner
) -> None:
    world.add_nodes(node("n1", cpu="3"))
    made = owner(world, SHORT)
    owners.append(made)
    if owner is not operators.spark:
        world.submit(pod("first", requests={"cpu": "1"}))
    # The driver starts executors, is none of them, and needs capacity before they exist.
    world.is_bound("pi-driver" if owner is operators.spark else "first")
    made.begin()
    some = made.are(1 if owner is operators.jobset else 2)
    world.why(some[-1], "WaitingForMembers", words=f"{len(some)} of the gang's 3 pods exist")
    made.finish()
    for name in made.are(3):
        assert "needs 3 x 1 cpu; 2 fit now" in world.why(name, "WaitingForCapacity")
    assert made.bound() == []
    world.add_nodes(node("n2", cpu="1"))
    until(lambda: len(made.bound()) == 3, "all are bound", PATIENCE)
    (lost,) = (each for each in made.pods() if each["spec"]["nodeName"] == "n2")
    world.submit(pod("theirs", requests={"cpu": "1"}, nodeName="n2", schedulerName="other"))
    evict(world, lost["metadata"]["name"])
    made.again(lost["metadata"]["name"])
    until(lambda: made.bound() == [], "the others have gone, too", PATIENCE)


@pytest.mark.parametrize("by", ["label", "namespace"])
def test_the_queue_of_a_gang_is_named_by_a_label_or_is_that_of_its_namespace(
    world: World, owners: list[operators.Made], by: str
) -> None:
    world.add_nodes(node("n1", cpu="8"))
    home = {"namespaces": ["default"]} if by == "namespace" else {}
    world.add_queue("narrow", limit={"cpu": "3"}, **home)
    labels = {"windlass.dev/queue": "narrow"} if by == "label" else {}
    world.submit(pod("before", {"labels": labels}, {"cpu": "1"}))
    world.is_bound("before")
    made = operators.pytorch(world, {}, **labels)
    owners.append(made)
    made.begin()
    made.finish()
    for name in made.are(3):
        assert "narrow" in world.why(name, "WaitingForQuota")
    assert made.bound() == []
    world.remove("before")
    until(lambda: made.bound() == ["n1"] * 3, "all are bound", PATIENCE)


def test_jobs_of_a_set_that_start_one_after_the_other_are_gangs_of_their_own(
    world: World, owners: list[operators.Made]
) -> None:
    world.add_nodes(node("n1", cpu="2"))
    made = operators.jobset(world, {}, {"startupPolicy": {"startupPolicyOrder": "InOrder"}})
    owners.append(made)
    made.begin()
    (driver,) = made.are(1)
    world.is_bound(driver)  # the workers are not made before it runs
    made.finish()
    for name in set(made.are(3)) - {driver}:
        world.why(name, "WaitingForCapacity", words="needs 2 x 1 cpu; 1 fit now")
    assert made.bound() == ["n1"]
    world.add_nodes(node("n2", cpu="1"))
    until(lambda: len(made.bound()) == 3, "all are bound", PATIENCE)


def test_a_launcher_that_waits_for_its_workers_is_not_waited_for(
    world: World, owners: list[operators.Made]
) -> None:
    world.add_nodes(node("n1", cpu="8"))
    made = operators.mpi(world, {}, policy="WaitForWorkersReady")
    owners.append(made)
    made.begin()
    until(lambda: len(made.bound()) == 2, "the workers are bound", PATIENCE)
    made.finish()
    until(lambda: len(made.bound()) == 3, "the launcher, too", PATIENCE)


@pytest.mark.parametrize(
    "said", [{"dynamicAllocation": {"enabled": True}},
             {"sparkConf": {"spark.dynamicAllocation.enabled": "true"}}],
    ids=["by the operator", "by Spark"],
)  # fmt: skip
def test_executors_that_come_and_go_are_no_gang(
    world: World, owners: list[operators.Made], said: Json
) -> None:
    world.add_nodes(node("n1", cpu="2"))
    made = operators.spark(world, SHORT, said)
    owners.append(made)
    world.is_bound("pi-driver")
    made.begin()
    made.finish()
    until(lambda: len(made.bound()) == 1, "one has room", PATIENCE)
    (waits, _) = [
        each["metadata"]["name"] for each in made.pods() if "nodeName" not in each["spec"]
    ]
    world.why(waits, "WaitingForCapacity")


def test_a_job_whose_pods_run_in_waves_is_no_gang_in_its_later_waves_either(
    world: World, owners: list[operators.Made]
) -> None:
    waves = job("waves", 1, 3)
    made = operators.Made(
        world, f"{operators.JOBS}/waves", "waves", "job-name=waves", [waves], waves
    )
    owners.append(made)
    made.begin()
    for number in range(3):
        until(lambda: _words(made), "it is told why it waits", PATIENCE)
        assert "WaitingForMembers" not in _words(made)[0]
        world.add_nodes(node(f"n{number}", cpu="1"))
        (one,) = _waiting(made)
        name = one["metadata"]["name"]
        world.is_bound(name)
        world.rest.merge(f"{world.pods()}/{name}/status", {"status": {"phase": "Succeeded"}})
        world.rest.delete(f"/api/v1/nodes/n{number}")


def _waiting(made: operators.Made) -> list[Json]:
    ended = ("Succeeded", "Failed")
    return [each for each in made.pods() if each["status"]["phase"] not in ended]


def _words(made: operators.Made) -> list[str]:
    return [
        condition["message"]
        for each in _waiting(made)
        for condition in each["status"].get("conditions") or ()
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]


def test_a_job_that_is_made_smaller_while_it_waits_starts_with_what_is_left(
    world: World, owners: list[operators.Made]
) -> None:
    world.add_nodes(node("n1", cpu="2"))
    shrinks = job("shrinks", 3, 3)
    path = f"{operators.JOBS}/shrinks"
    made = operators.Made(world, path, "shrinks", "job-name=shrinks", [shrinks], shrinks)
    owners.append(made)
    made.begin()
    for name in made.are(3):
        world.why(name, "Impossible")
    assert world.rest.merge(path, {"spec": {"parallelism": 2, "completions": 2}}).status == 200
    until(lambda: made.bound() == ["n1", "n1"], "both that are left are bound", PATIENCE)


def test_replicas_of_an_inference_service_share_a_queue_by_label_and_each_starts_by_itself(
    world: World,
) -> None:
    """Its Deployment is KServe's, its pods are made, made again and replaced by Kubernetes' own
    controllers."""
    world.add_nodes(node("n1", cpu="8"))
    world.add_queue("serving", limit={"cpu": "2"})
    operators.kserve(world, 3, **{"windlass.dev/queue": "serving"})
    deployment = f"{operators.DEPLOYMENTS}/bert-predictor"

    def pods(bound: bool) -> list[Json]:
        listed = world.rest.get(world.pods(), labelSelector="component=predictor").json["items"]
        alive = (each for each in listed if not each["metadata"].get("deletionTimestamp"))
        return [each for each in alive if bool(each["spec"].get("nodeName")) == bound]

    def are(bound: int, waiting: int) -> None:
        until(
            lambda: (len(pods(True)), len(pods(False))) == (bound, waiting),
            f"{bound} are bound, {waiting} wait",
            PATIENCE,
        )

    try:
        are(2, 1)
        (waits,) = pods(False)
        assert "serving" in world.why(waits["metadata"]["name"], "WaitingForQuota")
        # A lost pod is replaced, and the workload that waited longer comes first. An API server
        # has times in seconds: in the same one no workload waited longer.
        made = datetime.datetime.fromisoformat(waits["metadata"]["creationTimestamp"])
        until(
            lambda: datetime.datetime.now(datetime.UTC) >= made + datetime.timedelta(seconds=1),
            "the next second began",
        )
        evict(world, pods(True)[0]["metadata"]["name"])
        assert world.is_bound(waits["metadata"]["name"])
        are(2, 1)
        limit = {"spec": {"limit": {"cpu": "3"}}}
        assert world.rest.merge("/apis/windlass.dev/v1alpha1/queues/serving", limit).status == 200
        are(3, 0)
        assert world.rest.merge(deployment, {"spec": {"replicas": 1}}).status == 200
        are(1, 0)
    finally:
        world.rest.delete(deployment, {"propagationPolicy": "Foreground"})
        until(lambda: world.rest.get(deployment).status == 404, "it is gone", PATIENCE)
