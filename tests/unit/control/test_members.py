"""Pods of members: what the user wrote, as it was written, and why they failed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.control import build
from windlass.agent.pods import env
from windlass.agent.runtime import exit_status
from windlass.control.model import members, retry
from windlass.control.runs import pod_template
from windlass.kinds.reasons import Reason
from windlass.kinds.types import core


@given(st.text("$()ABC a", max_size=12))
def test_text_survives_the_expansion_that_pods_go_through(text: str) -> None:
    assert env.expand(pod_template.literal(text), {"A": "filled in"}) == text


ENVIRONMENT, CODE = Reason.IMAGE_OR_ENVIRONMENT_FAILED, Reason.CODE_FAILED
TYPED = '{"reason": "%s", "message": "m"}'


@pytest.mark.parametrize(
    ("reason", "message", "gives", "says"),
    [
        ("Unsupported", "m", Reason.UNSUPPORTED, "m"),  # as the embedded agent has taken it apart
        ("Error", TYPED % "Unsupported", Reason.UNSUPPORTED, "m"),  # as kubelet leaves it
        ("Error", "printed", ENVIRONMENT, "printed"),
        ("OOMKilled", "printed", Reason.OUT_OF_MEMORY, "printed"),
        ("NodeLost", "m", ENVIRONMENT, "m"),
        ("Error", TYPED % "NodeRefused", ENVIRONMENT, "m"),
        ("Error", TYPED % "Suspended", ENVIRONMENT, "m"),
    ],
)
def test_why_preparing_failed(reason, message, gives, says):
    pod = build.pod(build.a_run("job"), "Failed")
    pod.status.init_container_statuses = [ended("prepare", reason, message)]
    assert members.failure(pod) == (gives, f"{pod.name}: {says}", 1)


@pytest.mark.parametrize(
    ("reason", "gives"),
    [("NodeLost", CODE), ("PortTaken", CODE), ("Evicted", CODE), ("NodeRefused", CODE),
     ("OOMKilled", Reason.OUT_OF_MEMORY), ("ShimLost", Reason.AGENT_LOST),
     ("OutOfDisk", Reason.OUT_OF_DISK), ("RightsChanged", CODE)],
)  # fmt: skip
def test_a_container_cannot_claim_what_is_said_of_pods(reason, gives):
    pod = build.pod(build.a_run("job"), "Failed")
    # Also one whose role has the name of our init container.
    pod.status.container_statuses = [ended("prepare", reason, TYPED % "NodeLost")]
    assert members.failure(pod)[0] is gives


@pytest.mark.parametrize(
    ("message", "gives"),
    [
        ("Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
         Reason.OUT_OF_DISK),
        ("Container worker exceeded its local ephemeral storage limit \"1Gi\". ",
         Reason.OUT_OF_DISK),
        ('Usage of EmptyDir volume "scratch" exceeds the limit "1Gi". ', Reason.OUT_OF_DISK),
        ("The node was low on resource: ephemeral-storage. ", Reason.NODE_LOST),
        ("The node was low on resource: memory. ", Reason.NODE_LOST),
    ],
)  # fmt: skip
def test_evictions_for_the_pods_own_disk_differ_from_those_for_the_node(message, gives):
    pod = build.pod(build.a_run("job"), "Failed")
    pod.status.reason, pod.status.message = "Evicted", message
    assert members.failure(pod)[0] is gives


def test_kubelets_eviction_counts_although_the_container_was_killed_for_it():
    pod = build.pod(build.a_run("job"), "Failed")
    pod.status.reason = "Evicted"
    pod.status.message = 'Container worker exceeded its local ephemeral storage limit "1Gi". '
    pod.status.container_statuses = [ended("worker", "Error", "")]
    reason, message, code = members.failure(pod)
    assert (reason, code) == (Reason.OUT_OF_DISK, None)
    assert "--disk" in message


def test_the_disk_of_a_role_is_requested_and_limited():
    owner = build.a_run("job")
    assert members.DISK not in members.needs(owner.spec.roles[0])
    owner.spec.roles[0].resources.disk = "2Gi"
    assert members.needs(owner.spec.roles[0])[members.DISK] == 2 << 30


def test_no_job_of_the_embedded_engine_can_claim_a_reason_that_counts():
    assert set(members._FAILURES) <= exit_status.PLATFORM_REASONS
    costless = {each for each in Reason if retry.cost(build.a_run("job"), each) == 0}
    assert costless <= exit_status.PLATFORM_REASONS


def ended(name: str, reason: str, message: str) -> core.ContainerStatus:
    how = core.ContainerStateTerminated(exit_code=1, reason=reason, message=message)
    return core.ContainerStatus(name=name, state=core.ContainerState(terminated=how))
