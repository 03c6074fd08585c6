"""What stands around a command where pods run images and have addresses of their own."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.control import build
from windlass.agent.init import main as init_main
from windlass.control.model import attempts, unsupported
from windlass.control.model.capabilities import Engine
from windlass.control.runs import pod_template
from windlass.frameworks import group_file
from windlass.kinds.types import core, run

CLUSTER = Engine(
    image="windlass:1",
    server="https://10.0.0.1:1",
    authority="PEM",
    python="/usr/local/bin/python3",
)
CODE = run.Code(digest="sha256:" + "0" * 64)


def pod(role: run.Role | None = None, **spec: Any) -> core.Pod:
    role = role or build.role()
    owner = build.assigned(build.a_run("job", role, **spec))
    return build.pod_of(
        owner, role, 0, run.Member(node="n1"), attempts.AttemptContext(CLUSTER)
    )  # fmt: skip


def told(made: core.Pod) -> dict[str, Any]:
    init = made.spec.init_containers[0]
    values = {each.name: each.value.replace("$$", "$") for each in init.env}
    found: dict[str, Any] = json.loads(values["WINDLASS_PREPARE"])
    return found


def test_a_plain_run_has_nothing_to_prepare():
    made = pod()
    assert made.spec.init_containers is None
    assert made.spec.containers[0].command == ["true"]
    assert made.spec.containers[0].image == "windlass:1"
    assert made.spec.containers[0].lifecycle is None


def test_everything_is_as_restricted_as_kubernetes_knows_it():
    made = pod(code=CODE)
    assert made.spec.automount_service_account_token is False
    assert made.spec.security_context["runAsNonRoot"] is True
    assert made.spec.security_context["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*made.spec.init_containers, *made.spec.containers):
        assert container.security_context == {
            "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip


@pytest.mark.parametrize(("user", "non_root"), [(None, True), (1000, True), (0, False)])
def test_a_user_may_set_the_uid(user, non_root):
    overrides = run.Overrides(security_context=run.SecurityContext(run_as_user=user))
    found = pod(overrides=overrides).spec.security_context
    assert (found["runAsUser"], found["runAsNonRoot"]) == (
        10001 if user is None else user,
        non_root,
    )


def test_the_users_image_runs_the_command_and_the_platforms_prepares_it():
    made = pod(code=CODE, environment=run.Environment(image="pytorch:2"))
    assert made.spec.init_containers[0].image == "windlass:1"
    main = made.spec.containers[0]
    assert main.image == "pytorch:2"
    # The shell is the one that was brought along: the image may have none.
    assert main.command[0] == "$(WINDLASS_ROOT)/run/bin/sh"
    assert main.command[-1] == "true"
    assert "token" not in [mount.name for mount in main.volume_mounts]


def test_an_image_of_the_users_gets_the_package_for_programs_inside_jobs():
    made = pod(environment=run.Environment(image="pytorch:2"))
    (prepare,) = made.spec.init_containers
    assert prepare.image == "windlass:1"
    assert told(made)["tools"] is True
    assert made.spec.containers[0].command[0] == "$(WINDLASS_ROOT)/run/bin/sh"


def test_members_of_a_group_know_which_pods_to_wait_for():
    made = pod(build.role(replicas=2), framework="torch", duration=run.Durations(start="5m"))
    found = told(made)
    assert group_file.sizes(found["group"]) == {"worker": 2}
    assert found["patience"] == 300
    names = [each.name for each in made.spec.containers[0].env]
    assert "MASTER_ADDR" not in names, "nobody knows it yet"
    assert "token" in [mount.name for mount in made.spec.init_containers[0].volume_mounts]


def test_members_have_host_names_if_requested():
    role = build.role(replicas=2)
    made = pod(role)
    assert (made.spec.hostname, made.spec.subdomain) == ("worker-0", "job")
    service = pod_template.service_of(build.a_run("job", role), CLUSTER)
    assert service.spec.cluster_ip == "None"
    assert service.spec.selector.items() <= made.metadata.labels.items()
    assert service.metadata.owner_references[0].kind == "Run"
    assert pod_template.service_of(build.a_run("job"), CLUSTER) is None
    assert pod_template.service_of(build.a_run("1st", role), CLUSTER) is None, (
        "no name of a service"
    )


def test_a_single_member_waits_for_no_other():
    values = {e.name: e.value for e in pod(framework="torch").spec.containers[0].env}
    assert values["MASTER_PORT"] == "20000"
    assert values["WORLD_SIZE"] == "1"


def test_packages_for_the_python_of_a_users_image_are_installed_in_that_image():
    both = run.Environment(image="pytorch:2", requirements=["six"], setup="true")
    assert unsupported.unsupported(build.a_run("a", environment=both).spec, CLUSTER) == ""
    prepare, furnish = pod(environment=both).spec.init_containers
    assert (prepare.image, furnish.image) == ("windlass:1", "pytorch:2")
    assert told(pod(environment=both))["image"] == "pytorch:2"
    assert "token" not in [mount.name for mount in furnish.volume_mounts]


def test_another_signal_than_term_is_sent_before_term():
    made = pod(checkpoint=run.Checkpoint(signal="SIGUSR1"))
    assert told(made)["tools"] is True
    script = made.spec.containers[0].lifecycle["preStop"]["exec"]["command"][-1]
    assert "kill -USR1 $pid" in script


@pytest.mark.skipif(shutil.which("busybox") is None, reason="needs busybox (static)")
def test_the_script_leads_to_the_command_with_all_that_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The whole way with the real shell: order, addresses, script, command."""
    echo = ["sh", "-c", 'echo "$MASTER_ADDR $RANK" "$0"', "it's"]
    role = msgspec.structs.replace(build.role(replicas=2), command=echo)
    made = pod(role, framework="torch")
    book = {"worker": ["10.9.0.1", "10.9.0.2"]}
    monkeypatch.setenv("WINDLASS_SERVER", CLUSTER.server)
    monkeypatch.setenv("WINDLASS_NAMESPACE", "default")
    monkeypatch.setattr(init_main.platform_client.PlatformClient, "addresses", lambda *_: book)
    init_main.prepare(tmp_path, told(made))
    command = [
        word.replace("$(WINDLASS_ROOT)", str(tmp_path)).replace("$$", "$")
        for word in made.spec.containers[0].command
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("10.9.0.1 0 it's\n", "")
