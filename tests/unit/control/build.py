"""Small builders of objects for tests of controllers."""

from __future__ import annotations

from typing import Any

from windlass.control.model import attempts
from windlass.control.runs import pod_template
from windlass.kinds.types import core, meta, queue, run

NAMESPACE = "team"
START = "2026-01-01T10:00:00Z"


def role(name: str = "worker", replicas: int = 1, cpu: str = "1", **more: Any) -> run.Role:
    resources = run.Resources(cpu=cpu, memory="1Gi")
    return run.Role(name=name, replicas=replicas, command=["true"], resources=resources, **more)


def a_run(name: str = "job", *roles: run.Role, **spec: Any) -> run.Run:
    return run.Run(
        metadata=meta.ObjectMeta(name=name, namespace=NAMESPACE, uid=f"uid-{name}"),
        spec=run.RunSpec(roles=list(roles) or [role()], **spec),
    )


def in_phase(owner: run.Run, phase: Any, reason: str = "", at: str = START) -> run.Run:
    """The same Run, having entered the phase at that time."""
    owner.status.phase = phase
    owner.status.reason = reason
    step = run.Transition(at=at, to_phase=phase, reason=reason)
    owner.status.history = [*(owner.status.history or ()), step]
    return owner


def assigned(
    owner: run.Run, epoch: int = 1, node: str = "n1", devices: list[str] | None = None
) -> run.Run:
    """The same Run with an assignment for the current attempt."""
    owner.status.assignment = run.Assignment(
        attempt=owner.status.attempt,
        epoch=epoch,
        members={
            each.name: [run.Member(node=node, devices=devices) for _ in range(each.replicas)]
            for each in owner.spec.roles
        },
    )
    if owner.status.phase != "Queued":
        owner.status.members = {each.name: each.replicas for each in owner.spec.roles}
    return owner


def pod(
    owner: run.Run,
    phase: str = "Running",
    index: int = 0,
    exit_code: int | None = None,
    devices: list[str] | None = None,
) -> core.Pod:
    """A pod of the Run's first role in its current attempt."""
    member = run.Member(node="n1", devices=devices)
    made = pod_of(owner, owner.spec.roles[0], index, member)
    made.metadata.uid = f"{owner.name}-{owner.status.attempt}-{index}"
    made.status.phase = phase
    if exit_code is not None:
        ended = core.ContainerStateTerminated(exit_code=exit_code, reason="Error")
        state = core.ContainerState(terminated=ended)
        made.status.container_statuses = [core.ContainerStatus(name="worker", state=state)]
    return made


def pod_of(
    owner: run.Run,
    role: run.Role,
    index: int,
    member: run.Member,
    context: attempts.AttemptContext | None = None,
) -> core.Pod:
    """The pod of one member, as it is submitted."""
    members = {(role.name, index): member}
    (made,) = pod_template.Pods(owner, members, context or attempts.AttemptContext())
    return made


def external_pod(name: str = "x", node: str = "n1", **requests: str) -> core.Pod:
    """An external pod; `gpu` stands for the resource of a vendor's plug-in."""
    amounts = {{"gpu": "nvidia.com/gpu"}.get(key, key): n for key, n in requests.items()}
    resources = core.ResourceRequirements(requests=amounts)
    return core.Pod(
        metadata=meta.ObjectMeta(name=name, namespace="kube-system", uid=name),
        spec=core.PodSpec(
            node_name=node, containers=[core.Container(name="main", resources=resources)]
        ),
    )


def node(
    name: str = "n1",
    cpu: str = "4",
    ready: bool = True,
    extra: dict[str, str] | None = None,
    **more: Any,
) -> core.Node:
    """`extra`: what it has besides cpu and memory."""
    status = core.NodeStatus(
        allocatable={"cpu": cpu, "memory": "16Gi", **(extra or {})},
        conditions=[meta.Condition(type="Ready", status="True" if ready else "False")],
    )
    return core.Node(metadata=meta.ObjectMeta(name=name, **more), status=status)


def a_queue(name: str = "default", **spec: Any) -> queue.Queue:
    return queue.Queue(metadata=meta.ObjectMeta(name=name), spec=queue.QueueSpec(**spec))
