"""Small builders of objects for tests of controllers."""

from __future__ import annotations

from typing import Any

from windlass.control import members
from windlass.kinds import kubernetes, meta, queue, run

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


def assigned(owner: run.Run, epoch: int = 1, node: str = "n1") -> run.Run:
    """The same Run with room for the attempt that is current."""
    owner.status.assignment = run.Assignment(
        attempt=owner.status.attempt,
        epoch=epoch,
        members={
            each.name: [run.Member(node=node) for _ in range(each.replicas)]
            for each in owner.spec.roles
        },
    )
    return owner


def pod(
    owner: run.Run, phase: str = "Running", index: int = 0, exit_code: int | None = None
) -> kubernetes.Pod:
    """A pod of the Run's first role in its current attempt."""
    made = members.pod_of(owner, owner.spec.roles[0], index, run.Member(node="n1"))
    made.metadata.uid = f"pod-{owner.status.attempt}-{index}"
    made.status.phase = phase
    if exit_code is not None:
        ended = kubernetes.ContainerStateTerminated(exit_code=exit_code, reason="Error")
        state = kubernetes.ContainerState(terminated=ended)
        made.status.container_statuses = [kubernetes.ContainerStatus(name="worker", state=state)]
    return made


def node(name: str = "n1", cpu: str = "4", ready: bool = True, **more: Any) -> kubernetes.Node:
    status = kubernetes.NodeStatus(
        allocatable={"cpu": cpu, "memory": "16Gi"},
        conditions=[meta.Condition(type="Ready", status="True" if ready else "False")],
    )
    return kubernetes.Node(metadata=meta.ObjectMeta(name=name, **more), status=status)


def a_queue(name: str = "default", **spec: Any) -> queue.Queue:
    return queue.Queue(metadata=meta.ObjectMeta(name=name), spec=queue.QueueSpec(**spec))
