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
     ("OOMKilled", Reason.OUT_OF_MEMORY), ("ShimLost", Reason.AGENT_LOST)],
)  # fmt: skip
def test_a_container_cannot_claim_what_is_said_of_pods(reason, gives):
    pod = build.pod(build.a_run("job"), "Failed")
    # Also one whose role has the name of our init container.
    pod.status.container_statuses = [ended("prepare", reason, TYPED % "NodeLost")]
    assert members.failure(pod)[0] is gives


def test_no_job_of_the_embedded_engine_can_claim_a_reason_that_counts():
    assert set(members._FAILURES) <= exit_status.PLATFORM_REASONS
    costless = {each for each in Reason if retry.cost(build.a_run("job"), each) == 0}
    assert costless <= exit_status.PLATFORM_REASONS


def ended(name: str, reason: str, message: str) -> core.ContainerStatus:
    how = core.ContainerStateTerminated(exit_code=1, reason=reason, message=message)
    return core.ContainerStatus(name=name, state=core.ContainerState(terminated=how))
