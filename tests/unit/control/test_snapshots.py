from tests.unit.control import build
from windlass.control import snapshots
from windlass.kinds import kubernetes, meta, run
from windlass.kinds.reasons import Reason

GI = 1 << 30


def taken(runs=(), pods=(), nodes=None, queues=None):
    return snapshots.snapshot(
        snapshots.Objects(
            nodes=[build.node()] if nodes is None else nodes,
            pods=list(pods),
            runs=list(runs),
            queues=[build.a_queue()] if queues is None else queues,
        )
    )


def free_cpu(shot) -> int:
    return shot.nodes[0].free["cpu"]


def holding(name="job", phase="Running", **spec) -> run.Run:
    return build.assigned(build.in_phase(build.a_run(name, **spec), phase))


def test_an_assignment_holds_its_room_before_any_pod_exists():
    shot = taken([holding(phase="Queued")])
    assert free_cpu(shot) == 3000
    assert shot.units == ()


def test_a_pod_and_its_assignment_are_one_member():
    owner = holding()
    assert free_cpu(taken([owner], [build.pod(owner)])) == 3000


def test_a_pod_of_an_earlier_attempt_counts_until_it_is_gone():
    owner = holding()
    old = build.pod(owner)
    owner.status.attempt = 1
    build.assigned(owner)
    assert free_cpu(taken([owner], [old])) == 2000


def test_a_terminating_pod_of_a_finished_run_counts_and_an_ended_one_does_not():
    owner = holding(phase="Failed")
    assert free_cpu(taken([owner], [build.pod(owner, "Running")])) == 3000
    assert free_cpu(taken([owner], [build.pod(owner, "Succeeded")])) == 4000


def test_other_peoples_pods_count_by_their_requests():
    requests = kubernetes.ResourceRequirements(requests={"cpu": "1500m"})
    foreign = kubernetes.Pod(
        metadata=meta.ObjectMeta(name="x", namespace="kube-system"),
        spec=kubernetes.PodSpec(
            node_name="n1",
            containers=[
                kubernetes.Container(name="a", resources=requests),
                kubernetes.Container(name="b", resources=requests),
            ],
        ),
    )
    assert free_cpu(taken([], [foreign])) == 1000


def test_who_waits():
    waiting = build.in_phase(build.a_run("waiting"), "Queued")
    held = build.in_phase(build.a_run("held", suspend=True), "Queued")
    ended = build.in_phase(build.a_run("ended"), "Failed")
    again = build.in_phase(build.a_run("again"), "Queued", Reason.NODE_LOST)
    build.assigned(again)
    again.status.attempt = 1
    shot = taken([waiting, held, ended, again, holding("holding")])
    assert [unit.key for unit in shot.units] == ["uid-waiting", "uid-again"]
    assert shot.units[1].not_before > 0


def test_the_queue_is_named_or_owns_the_namespace_or_is_the_default():
    own = build.a_queue("support", namespaces=[build.NAMESPACE])
    named = build.in_phase(build.a_run("a", queue="vision"), "Queued")
    plain = build.in_phase(build.a_run("b"), "Queued")
    assert [u.queue for u in taken([named, plain], queues=[own]).units] == ["vision", "support"]
    assert [u.queue for u in taken([plain]).units] == ["default"]


def test_a_queues_use_and_limit_are_counted_in_the_same_units():
    limits = build.a_queue(limit={"cpu": "8", "memory": "2Gi", "gpu": 3})
    (queue,) = taken([holding()], queues=[limits]).queues
    assert queue.limit == {"cpu": 8000, "memory": 2 * GI, "gpu": 3000}
    assert queue.used == {"cpu": 1000, "memory": GI}


def test_a_node_that_is_not_ready_or_cordoned_is_not_open():
    cordoned = build.node("b")
    cordoned.spec.unschedulable = True
    nodes = [build.node("a"), cordoned, build.node("c", ready=False)]
    assert [n.open for n in taken(nodes=nodes).nodes] == [True, False, False]


def test_elastic_roles_give_the_least_and_the_most():
    elastic = build.a_run("e", build.role(replicas=4, min_replicas=2))
    (unit,) = taken([build.in_phase(elastic, "Queued")]).units
    assert [(g.least, g.most, g.needs["cpu"]) for g in unit.groups] == [(2, 4, 1000)]


def test_what_no_engine_can_do_yet_is_said_not_ignored():
    waiting = build.in_phase(build.a_run("a", framework="torch"), "Queued")
    (unit,) = taken([waiting]).units
    assert unit.unsupported == "spec.framework torch: only process is supported; leave it out"
