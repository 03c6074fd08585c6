"""How pods look: what a Run says has a place in them, and engines differ by data only."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.unit.control import build
from windlass.agent.pods import env
from windlass.control.model import attempts, ports, unsupported
from windlass.control.model.capabilities import Engine
from windlass.control.runs import pod_template
from windlass.kinds.annotations import OF_AGENTS, PORTS
from windlass.kinds.types import core, run

EMBEDDED = Engine(
    images=False, addresses="node", server="https://127.0.0.1:1", authority="PEM",
    isolation="user", claims=False, python="/opt/python",
    environments="/windlass/team/environments",
)  # fmt: skip
DIGEST = "sha256:" + "0" * 64
CODE = run.Code(digest=DIGEST)


def pod(
    role: run.Role | None = None, engine: Engine = EMBEDDED, devices: Any = None, **spec: Any
) -> core.Pod:
    role = role or build.role()
    owner = build.assigned(build.a_run("job", role, **spec), devices=devices)
    block = ports.layout(owner.spec)
    block = dataclasses.replace(block, first=20000) if block else None
    context = attempts.AttemptContext(engine, block, addresses={"n1": "10.0.0.1"})
    return build.pod_of(owner, role, 0, run.Member(node="n1", devices=devices), context)


def variables(made: core.Pod) -> dict[str, str]:
    """As the pod's processes see them on the embedded engine."""
    built: dict[str, str] = {}
    for each in made.spec.containers[0].env or ():
        built[each.name] = env.expand(each.value, {**built, "WINDLASS_ROOT": "/root"})
    return built


def test_a_plain_run_is_as_small_as_it_was():
    made = pod(engine=Engine(images=False, addresses="node", isolation="process"))
    assert made.spec.init_containers is None
    assert made.spec.volumes is None
    assert made.spec.containers[0].command == ["true"]
    assert not {PORTS, *OF_AGENTS} & made.metadata.annotations.keys()


def test_code_and_requirements_are_prepared_before_the_command():
    wanted = run.Environment(requirements=["six"], python="3.12", setup="make")
    made = pod(code=CODE, environment=wanted)
    (prepare,) = made.spec.init_containers
    assert prepare.command == ["/opt/python", "-I", "-m", "windlass.agent.init.main"]
    told = {each.name: each.value for each in prepare.env}
    assert told["WINDLASS_SERVER"] == EMBEDDED.server
    for word in (DIGEST, '"six"', '"3.12"', '"make"'):
        assert word in told["WINDLASS_PREPARE"]
    main = made.spec.containers[0]
    assert main.command[-2:] == ["$(WINDLASS_ROOT)/run/environment", "true"]
    assert main.working_dir == "/windlass/code"
    mounted = {mount.name for mount in main.volume_mounts}
    assert "token" not in mounted, "the job itself gets no token"
    assert {mount.name for mount in prepare.volume_mounts} == mounted | {"token"}
    volumes = {volume["name"]: volume for volume in made.spec.volumes}
    (source,) = volumes["token"]["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "windlass"
    assert volumes["environments"]["hostPath"]["path"] == "/windlass/team/environments"


def test_a_users_text_is_never_filled_in():
    role = run.Role(command=["echo", "$(WINDLASS_SECRET)", "$HOME"], env={"A": "$(B)"})
    made = pod(role)
    words = [env.expand(w, {"WINDLASS_SECRET": "x"}) for w in made.spec.containers[0].command]
    assert words == ["echo", "$(WINDLASS_SECRET)", "$HOME"]
    assert variables(made)["A"] == "$(B)"


@pytest.mark.parametrize(
    ("source", "volume"),
    [
        ("claim:data", {"persistentVolumeClaim": {"claimName": "data", "readOnly": True}}),
        ("host:/mnt", {"hostPath": {"path": "/mnt"}}),
        ("config:c", {"configMap": {"name": "c"}}),
        ("secret:s", {"secret": {"secretName": "s"}}),
    ],
)
def test_mounts_become_volumes(source, volume):
    made = pod(mounts=[run.Mount(source=source, path="/data", read_only=True)])
    found = next(each for each in made.spec.volumes if each["name"] == "mount-0")
    assert found == {"name": "mount-0", **volume}
    mount = next(m for m in made.spec.containers[0].volume_mounts if m.name == "mount-0")
    assert (mount.mount_path, mount.read_only) == ("/data", True)


@pytest.mark.parametrize(
    ("shm", "isolation", "size"),
    [("auto", "user", str(512 << 20)), ("auto", "process", None), ("2Gi", "process", "2Gi")],
)
def test_shared_memory_is_as_large_as_asked_for(shm, isolation, size):
    role = build.role()
    role.resources.shm = shm
    engine = Engine(images=False, isolation=isolation)
    found = [v for v in pod(role, engine).spec.volumes or () if v["name"] == "shm"]
    sizes = [volume["emptyDir"]["sizeLimit"] for volume in found]
    assert sizes == ([size] if size else [])


def test_overrides_are_honoured_and_ours_cannot_be_overridden():
    overrides = run.Overrides(
        labels={"a": "b", run.LABEL_RUN: "other"},
        annotations={"c": "d", PORTS: "1-2", **dict.fromkeys(OF_AGENTS, "{}")},
        image_pull_policy="Always",
        image_pull_secrets=["registry"],
        runtime_class_name="kata",
        priority_class_name="high",
        security_context=run.SecurityContext(run_as_user=5, fs_group=6),
    )
    made = pod(overrides=overrides)
    assert made.metadata.labels["a"] == "b"
    assert made.metadata.labels[run.LABEL_RUN] == "job"
    assert made.metadata.annotations["c"] == "d"
    assert PORTS not in made.metadata.annotations
    assert made.spec.containers[0].image_pull_policy == "Always"
    assert made.spec.image_pull_secrets == [{"name": "registry"}]
    assert (made.spec.runtime_class_name, made.spec.priority_class_name) == ("kata", "high")
    assert made.spec.security_context == {"runAsUser": 5, "fsGroup": 6}


def test_members_see_their_own_devices_and_no_others():
    seen = variables(pod(devices=["gpu/1", "gpu/3:250", "rdma/0"]))
    assert seen["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert seen["WINDLASS_DEVICES"] == "gpu/1,gpu/3:250,rdma/0"
    assert variables(pod())["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in variables(pod(engine=Engine()))


def test_named_ports_come_from_the_block_where_members_share_an_address():
    role = build.role(replicas=2, ports=[run.Port(name="http-api", port=80)])
    made = pod(role)
    assert made.spec.containers[0].ports[0].container_port == 20001
    assert variables(made)["WINDLASS_PORT_HTTP_API"] == "20001"
    alone = build.pod_of(build.a_run("job", role), role, 0, run.Member(node="n1"))
    assert alone.spec.containers[0].ports[0].container_port == 80


def test_members_that_speak_to_each_other_share_a_secret_that_no_pod_spells_out():
    owner = build.a_run("job", build.role(replicas=2), framework="mpi")
    secret = pod_template.secret_of(owner, "t0ken")
    assert secret.metadata.owner_references[0].uid == owner.uid
    made = pod(build.role(replicas=2), framework="mpi")
    given = next(e for e in made.spec.containers[0].env if e.name == "WINDLASS_SECRET")
    assert given.value_from.secret_key_ref.name == secret.name
    assert given.value == ""
    assert pod_template.secret_of(build.a_run("plain"), "x") is None


IMAGE = run.Environment(image="pytorch")
REFUSED = [
    ({"environment": IMAGE}, EMBEDDED, "leave it out and name packages in"),
    ({"environment": IMAGE}, Engine(), ""),
    ({"mounts": [run.Mount(source="claim:x", path="/d")]}, EMBEDDED, "mount a host: folder"),
    ({"mounts": [run.Mount(source="claim:x", path="/d")]}, Engine(), ""),
    ({"mounts": [run.Mount(source="dataset:x", path="/d")]}, None, "mount a claim or host:"),
    ({"code": CODE}, Engine(), "pods cannot reach the server"),
    ({"overrides": run.Overrides(runtime_class_name="kata")}, EMBEDDED, "kata: this engine runs"),
    ({"overrides": run.Overrides(runtime_class_name="kata")}, Engine(), ""),
    ({"framework": "torch"}, EMBEDDED, ""),
    ({"framework": "ray"}, Engine(addresses="node", ports=(20000, 20001)), "need 3 ports"),
]


@pytest.mark.parametrize(("spec", "engine", "says"), REFUSED)
def test_what_an_engine_cannot_do_is_refused_with_the_remedy(spec, engine, says):
    said = unsupported.unsupported(build.a_run("a", **spec).spec, engine)
    assert (says in said) if says else said == ""


def test_tolerations_are_kept_for_controllers_that_evict_pods_from_nodes():
    accepted = run.Toleration(key="spot", operator="Exists", effect="NoExecute")
    made = pod(placement=run.Placement(nodes=run.NodeChoice(tolerations=[accepted])))
    own, told = made.spec.tolerations
    assert (own.key, own.operator, own.effect) == ("windlass.dev/only", "Exists", "")
    assert (told.key, told.operator, told.effect) == ("spot", "Exists", "NoExecute")


@pytest.mark.parametrize("images", [False, True])
def test_the_disk_of_a_role_is_a_request_and_a_limit_and_absent_without_it(images: bool):
    engine = dataclasses.replace(EMBEDDED, images=images, image="windlass")
    wanted = run.Environment(requirements=["six"])
    role = build.role()
    role.resources.disk = "2Gi"
    made = pod(role, engine=engine, environment=wanted, code=CODE)
    plain = pod(engine=engine, environment=wanted, code=CODE)
    for container in (*made.spec.containers, *made.spec.init_containers):
        assert container.resources.requests["ephemeral-storage"] == "2Gi"
        assert container.resources.limits["ephemeral-storage"] == "2Gi"
    for container in (*plain.spec.containers, *plain.spec.init_containers):
        assert "ephemeral-storage" not in container.resources.limits
