"""The pod of a replica, and the parts of a Run that an engine does not support.

Pure. `control.runs.state_machine` requests the missing pods; `control.convert.run_workloads` gates
Runs that are not supported. The differences between engines are data in
`attempts.AttemptContext`.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from windlass import frameworks
from windlass.control.model import array_runs, attempts, members, pod_setup, ports
from windlass.control.model import capabilities as engines
from windlass.frameworks import group as groups
from windlass.frameworks import group_file as orders
from windlass.kinds.annotations import (
    HOST_IMAGE,
    OF_AGENTS,
    PORTS,
    PROGRESS_VARIABLE,
    ROOT,
    ROOT_VARIABLE,
    SCRATCH,
    STOP_SIGNAL,
)
from windlass.kinds.types import core, meta, run
from windlass.kinds.values import duration, quantity

AUDIENCE = "windlass"
_VISIBLE = {"gpu": ("CUDA_VISIBLE_DEVICES",), "npu": ("ASCEND_RT_VISIBLE_DEVICES",)}
"""Without a runtime that hides devices, variables tell programs which devices to use."""
_TOKEN_SECONDS = 3600


# --- the pod --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pods:
    """The pods of replicas of the current assignment, each rendered on demand: thousands at once
    would block the event loop."""

    owner: run.Run
    members: Mapping[tuple[str, int], run.Member]
    """By role and index."""
    context: attempts.AttemptContext
    restarts: Mapping[tuple[str, int], int] = dataclasses.field(default_factory=dict)
    """The number of the restart within the attempt."""

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[core.Pod]:
        roles = {role.name: role for role in self.owner.spec.roles}
        run_pods: _RunPods | None = None
        for (role, index), member in sorted(self.members.items(), key=lambda each: each[0]):
            restart = self.restarts.get((role, index), 0)
            made = _Pod(self.owner, roles[role], index, member, self.context, restart, run_pods)
            # The list of replicas is computed once for all.
            run_pods = run_pods or made.everyone()
            yield dataclasses.replace(made, run_pods=run_pods).render()


def service_of(owner: run.Run, engine: engines.Engine) -> core.Service | None:
    """Gives replicas names, if they have addresses of their own; deleted with the Run."""
    return pod_setup.service(owner, engine, _owner(owner))


def secret_of(owner: run.Run, token: str) -> core.Secret | None:
    """The secret with which replicas of a run authenticate to each other; None if they do not. It
    must exist before their pods start, and is deleted with the Run."""
    if not frameworks.BY_NAME[owner.spec.framework].secret:
        return None
    return core.Secret(
        metadata=meta.ObjectMeta(
            name=_secret_name(owner), namespace=owner.namespace, owner_references=[_owner(owner)]
        ),
        type="windlass.dev/peers",
        data={"secret": base64.b64encode(token.encode()).decode()},
        immutable=True,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _RunPods:
    """All replicas of an attempt."""

    members: Mapping[tuple[str, int], groups.Member]
    """By rank."""
    groups: dict[str, groups.Group] = dataclasses.field(default_factory=dict)
    """By role, the group as its replicas see it."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Pod:
    owner: run.Run
    role: run.Role
    index: int
    member: run.Member
    context: attempts.AttemptContext
    restart: int = 0
    run_pods: _RunPods | None = None
    """The other replicas, if they are computed already."""

    @property
    def _root(self) -> str:
        """A placeholder for the pod's own folder while texts are put together. No text of a user
        can contain it, because the uid is unknown when the user writes it."""
        return f"<root of {self.owner.uid}>"

    def _filled(self, text: str) -> str:
        return literal(text).replace(self._root, f"$({ROOT_VARIABLE})")

    def render(self) -> core.Pod:
        owner, overrides = self.owner, self.owner.spec.overrides or run.Overrides()
        rendered = frameworks.render(owner.spec.framework, *self._group())
        return core.Pod(
            metadata=meta.ObjectMeta(
                name=run.pod_name(
                    owner.name, owner.uid, owner.status.attempt, self.role.name, self.index
                ),
                namespace=owner.namespace,
                labels=self._labels(overrides),
                annotations=self._annotations(overrides, rendered),
                owner_references=[_owner(owner)],
            ),
            spec=core.PodSpec(
                node_name=self.member.node,
                restart_policy="Never",
                termination_grace_period_seconds=duration.seconds(owner.spec.checkpoint.grace),
                enable_service_links=False,
                automount_service_account_token=False,
                tolerations=_tolerations(owner.spec) or None,
                share_process_namespace=self.context.engine.images or None,
                hostname=f"{self.role.name}-{self.index}" if self._has_names else "",
                subdomain=owner.name if self._has_names else "",
                init_containers=[*self._before(), *self._beside()] or None,
                containers=[self._main(overrides, rendered)],
                volumes=[volume for volume, _ in self._volumes()] or None,
                priority_class_name=overrides.priority_class_name or "",
                runtime_class_name=overrides.runtime_class_name,
                image_pull_secrets=[{"name": n} for n in overrides.image_pull_secrets or ()]
                or None,
                security_context=pod_setup.pod_security(
                    overrides.security_context, self.context.engine
                ),
            ),
        )

    def _labels(self, overrides: run.Overrides) -> dict[str, str]:
        return {
            **(overrides.labels or {}),
            **array_runs.labels_of(self.owner),
            run.LABEL_RUN: self.owner.name,
            run.LABEL_ATTEMPT: str(self.owner.status.attempt),
            run.LABEL_ROLE: self.role.name,
            run.LABEL_INDEX: str(self.index),
        }

    def _annotations(self, overrides: run.Overrides, rendered: groups.Rendered) -> dict[str, str]:
        found = {
            **(overrides.annotations or {}),
            STOP_SIGNAL: self.owner.spec.checkpoint.signal,
        }
        for ours in (
            members.ANNOTATION_DEVICES, members.ANNOTATION_RESTART, PORTS, ports.LAYOUT,
            SCRATCH, *OF_AGENTS,
        ):  # fmt: skip
            found.pop(ours, None)
        if rendered.scratch:
            found[SCRATCH] = rendered.scratch
        if self.restart:
            found[members.ANNOTATION_RESTART] = str(self.restart)
        if self.member.devices:
            found[members.ANNOTATION_DEVICES] = ",".join(self.member.devices)
        if self.context.ports:
            found |= self.context.ports.written()
        return found

    # --- containers

    def _main(self, overrides: run.Overrides, rendered: groups.Rendered) -> core.Container:
        engine, spec = self.context.engine, self.owner.spec
        command = list(rendered.command)
        if pod_setup.builds_environment(spec) or (engine.images and self._is_prepared):
            command = pod_setup.entered(command, self._root, engine)
        # An agent on the node grants shares; the kubelet counts whole devices only.
        whole = (name for name in self.member.devices or () if ":" not in name)
        devices = Counter(_resource_of(name) for name in whole)
        amounts: core.Quantities = {
            "cpu": self.role.resources.cpu,
            "memory": self.role.resources.memory,
            **self._disk(),
            **{resource: str(count) for resource, count in devices.items()},
        }
        return core.Container(
            name=self.role.name,
            image=self._image(),
            image_pull_policy=overrides.image_pull_policy or "",
            command=[self._filled(word) for word in command],
            working_dir=pod_setup.working_folder(spec, engine),
            env=self._environment({} if self._finds_others else rendered.variables),
            env_from=[_env_from(source) for source in self.role.env_from or ()] or None,
            ports=self._ports() or None,
            resources=core.ResourceRequirements(requests=amounts, limits=amounts),
            volume_mounts=self._mounts_of_members() or None,
            lifecycle=pod_setup.lifecycle(spec, engine),
            security_context=pod_setup.container_security(engine),
        )

    def _disk(self) -> core.Quantities:
        disk = self.role.resources.disk
        return {} if disk is None else {members.DISK: disk}

    def _before(self) -> list[core.Container]:
        """The init containers of the replica; they use its capacity, so they have its resources."""
        if not self._is_prepared:
            return []
        spec, engine = self.owner.spec, self.context.engine
        group = None
        if self._finds_others:
            group = orders.write(spec.framework, *self._group())
        variables = {
            ROOT_VARIABLE: ROOT,
            "WINDLASS_NAMESPACE": self.owner.namespace,
            "WINDLASS_RUN": self.owner.name,
            "WINDLASS_SERVER": engine.server,
            "WINDLASS_AUTHORITY": engine.authority,
            pod_setup.ORDER: json.dumps(pod_setup.order(spec, engine, group)),
        }
        amounts: core.Quantities = {
            "cpu": self.role.resources.cpu, "memory": self.role.resources.memory, **self._disk(),
        }  # fmt: skip
        prepare = core.Container(
            name=pod_setup.PREPARE,
            image=engine.image or HOST_IMAGE,
            command=[engine.python, "-I", "-m", "windlass.agent.init.main"],
            # With the variables of the user: they name the package index.
            env=[
                core.EnvVar(name=n, value=literal(v))
                for n, v in ((self.role.env or {}) | variables).items()
            ],
            env_from=[_env_from(source) for source in self.role.env_from or ()] or None,
            resources=core.ResourceRequirements(requests=amounts, limits=amounts),
            volume_mounts=[mount for _, mount in self._volumes()] or None,
            security_context=pod_setup.container_security(engine),
        )
        own = pod_setup.furnished_in(spec, engine)
        if not own:
            return [prepare]
        furnish = msgspec.structs.replace(
            prepare, name=pod_setup.FURNISH, image=own, command=pod_setup.furnish_command(own),
            image_pull_policy=(spec.overrides and spec.overrides.image_pull_policy) or "",
            volume_mounts=self._mounts_of_members() or None,
        )  # fmt: skip
        return [prepare, furnish]

    def _beside(self) -> list[core.Container]:
        """The sidecar that collects outputs. What it requests is nothing: the node has no more
        capacity for the replica than its resources."""
        spec, engine = self.owner.spec, self.context.engine
        if not spec.outputs:
            return []
        variables = {
            ROOT_VARIABLE: ROOT,
            "WINDLASS_NAMESPACE": self.owner.namespace,
            "WINDLASS_SERVER": engine.server,
            "WINDLASS_AUTHORITY": engine.authority,
            pod_setup.COLLECT: json.dumps(pod_setup.collection(self.owner, engine)),
        }
        return [
            core.Container(
                name=pod_setup.OUTPUTS,
                image=engine.image or HOST_IMAGE,
                command=pod_setup.collect_command(engine),
                env=[core.EnvVar(name=n, value=literal(v)) for n, v in variables.items()],
                resources=core.ResourceRequirements(
                    requests={"cpu": "0", "memory": "0"}, limits={"memory": pod_setup.COLLECT_LIMIT}
                ),
                volume_mounts=[mount for _, mount in self._volumes()] or None,
                security_context=pod_setup.container_security(engine),
                restart_policy="Always",
            )
        ]

    @property
    def _is_prepared(self) -> bool:
        return pod_setup.is_needed(self.owner.spec, self.context.engine, self._size)

    @property
    def _finds_others(self) -> bool:
        return pod_setup.finds_others(self.context.engine, self._size)

    @property
    def _has_names(self) -> bool:
        return pod_setup.has_names(self.owner, self.context.engine, self._size)

    @property
    def _size(self) -> int:
        """The number of replicas of the attempt."""
        return len(self._group()[0].members)

    def _image(self) -> str:
        environment = self.owner.spec.environment
        own = environment.image if environment else None
        return own or self.context.engine.image or HOST_IMAGE

    def _environment(self, rendered: Mapping[str, str]) -> list[core.EnvVar]:
        owner = self.owner
        # First, because the others refer to it; the embedded agent has its own placeholder for it.
        found = [core.EnvVar(name=ROOT_VARIABLE, value=ROOT)]
        ours = {
            "WINDLASS_RUN": owner.name,
            "WINDLASS_ATTEMPT": str(owner.status.attempt),
            "WINDLASS_ROLE": self.role.name,
            "WINDLASS_INDEX": str(self.index),
            PROGRESS_VARIABLE: f"{self._root}/run/progress.json",
            **rendered,
            **self._port_variables(),
            **self._device_variables(),
        }
        if owner.spec.outputs:
            ours["WINDLASS_OUTPUTS"] = f"{self._root}/{pod_setup.OUTPUTS}"
            ours |= pod_setup.outputs_api(owner, self.context.engine, self._root)
        if owner.spec.checkpoint.path:
            ours["WINDLASS_CHECKPOINT"] = owner.spec.checkpoint.path
        # Unbuffered output, because users follow logs; the job's own setting wins.
        usual = {"PYTHONUNBUFFERED": "1"}
        if self.context.engine.isolation == "container":
            # Whatever the user of the image, there is a folder that it may write to.
            usual["HOME"] = f"{self._root}/run"
        merged = {**usual, **(self.role.env or {}), **ours}
        found += [core.EnvVar(name=n, value=self._filled(v)) for n, v in merged.items()]
        if frameworks.BY_NAME[owner.spec.framework].secret:
            ref = core.KeyRef(name=_secret_name(owner), key="secret")
            source = core.EnvVarSource(secret_key_ref=ref)
            found.append(core.EnvVar(name="WINDLASS_SECRET", value_from=source))
        return found

    # --- the other replicas

    def _group(self) -> tuple[groups.Group, groups.Member]:
        run_pods = self.run_pods or self.everyone()
        me = run_pods.members[self.role.name, self.index]
        if self.role.name in run_pods.groups:
            return run_pods.groups[self.role.name], me
        live = self.role.resize == "live" and self.role.min_replicas
        engine, environment = self.context.engine, self.owner.spec.environment
        own_image = engine.images and environment is not None and environment.image
        group = groups.Group(
            run=self.owner.name,
            uid=self.owner.uid,
            attempt=self.owner.status.attempt,
            members=tuple(run_pods.members.values()),
            command=tuple(self.role.command),
            root=self._root,
            python="python3" if own_image else engine.python,
            companion=f"{self._root}/{pod_setup.COMPANION}" if engine.images else "",
            least=self.role.min_replicas or 0 if live else 0,
        )
        run_pods.groups[self.role.name] = group
        return group, me

    def everyone(self) -> _RunPods:
        return _RunPods({(each.role, each.index): each for each in self._everyone()})

    def _everyone(self) -> Iterable[groups.Member]:
        spec, assignment = self.owner.spec, self.owner.status.assignment
        current = assignment is not None and assignment.attempt == self.owner.status.attempt
        assigned = assignment.members if assignment is not None and current else {}
        rank, block, engine = 0, self.context.ports, self.context.engine
        # A replica with an address of its own has all ports.
        usual = engine.ports[0] if engine.addresses == "pod" else 0
        for role in spec.roles:
            listed = assigned.get(role.name) or [self.member] * role.replicas
            count = max(len(listed), self.index + 1 if role.name == self.role.name else 0)
            for index in range(count):
                place = listed[index] if index < len(listed) else self.member
                yield groups.Member(
                    role=role.name,
                    index=index,
                    rank=rank,
                    address=self.context.addresses.get(place.node, "127.0.0.1"),
                    port=block.port(role.name, index) if block else usual,
                    gpus=_count(place, "gpu"),
                    cpus=max(1, quantity.milli(role.resources.cpu) // 1000),
                    memory=quantity.whole(role.resources.memory),
                )
                rank += 1

    def _ports(self) -> list[core.ContainerPort]:
        numbers = self._port_numbers()
        return [
            core.ContainerPort(name=port.name, container_port=numbers[port.name])
            for port in self.role.ports or ()
        ]

    def _port_numbers(self) -> dict[str, int]:
        """Where replicas share an address, the ports that they name are taken from the block."""
        named = self.role.ports or ()
        if not self.context.ports:
            return {port.name: port.port for port in named}
        _, me = self._group()
        first = me.port + frameworks.BY_NAME[self.owner.spec.framework].ports
        return {port.name: first + place for place, port in enumerate(named)}

    def _port_variables(self) -> dict[str, str]:
        return {
            f"WINDLASS_PORT_{name.upper().replace('-', '_')}": str(number)
            for name, number in self._port_numbers().items()
        }

    def _device_variables(self) -> dict[str, str]:
        devices = self.member.devices or ()
        found = {"WINDLASS_DEVICES": ",".join(devices)} if devices else {}
        if self.context.engine.images:
            return found  # the container runtime shows only the devices of the container
        for kind, names in _VISIBLE.items():
            own = ",".join(str(number) for number in _numbers(devices, kind))
            found |= dict.fromkeys(names, own)
        return found

    # --- file trees

    def _mounts_of_members(self) -> list[core.VolumeMount]:
        """The mounts of all containers but `prepare`. The command has the pod's token only if it
        may read outputs of its team with it."""
        token = bool(self.owner.spec.outputs)
        return [mount for _, mount in self._volumes() if mount.name != "token" or token]

    def _volumes(self) -> list[tuple[dict[str, Any], core.VolumeMount]]:
        spec, engine = self.owner.spec, self.context.engine
        found: list[tuple[dict[str, Any], core.VolumeMount]] = []

        def add(
            name: str, path: str, source: dict[str, Any], read_only: bool | None = None
        ) -> None:
            mount = core.VolumeMount(name=name, mount_path=path, read_only=read_only)
            found.append(({"name": name, **source}, mount))

        if engine.images:
            add("run", f"{ROOT}/run", {"emptyDir": {}})
        if spec.code:
            add("code", f"{ROOT}/code", {"emptyDir": {}})
        if spec.outputs:
            add(pod_setup.OUTPUTS, f"{ROOT}/{pod_setup.OUTPUTS}", {"emptyDir": {}})
            if engine.images and not spec.code:
                # Beside the command's image, so that the sidecar sees it.
                add("work", f"{ROOT}/work", {"emptyDir": {}})
        if spec.code or self._finds_others or spec.outputs:
            token = {
                "audience": AUDIENCE, "expirationSeconds": _TOKEN_SECONDS, "path": "token",
            }  # fmt: skip
            add("token", f"{ROOT}/token",
                {"projected": {"sources": [{"serviceAccountToken": token}]}}, True)  # fmt: skip
        if pod_setup.builds_environment(spec):
            source = pod_setup.environments_volume(engine, self.owner.namespace)
            add("environments", f"{ROOT}/environments", source)
        size = pod_setup.shared_memory(self.role, engine)
        if size:
            volume_source = {"medium": "Memory", "sizeLimit": size}
            add(members.SHARED_MEMORY, "/dev/shm", {"emptyDir": volume_source})  # noqa: S108
        for number, mount in enumerate(spec.mounts or ()):
            add(f"mount-{number}", mount.path, _mount_source(mount), mount.read_only or None)
        return found


def literal(text: str) -> str:
    """Text that reaches the container unchanged: in pods, `$(NAME)` would be expanded."""
    return text.replace("$", "$$")


def _mount_source(mount: run.Mount) -> dict[str, Any]:
    kind, _, name = mount.source.partition(":")
    if kind == "claim":
        claim: dict[str, Any] = {"claimName": name}
        return {"persistentVolumeClaim": claim | ({"readOnly": True} if mount.read_only else {})}
    if kind == "host":
        return {"hostPath": {"path": name}}
    return {"configMap": {"name": name}} if kind == "config" else {"secret": {"secretName": name}}


def _tolerations(spec: run.RunSpec) -> list[core.Toleration]:
    """The scheduler checks them itself; controllers that evict pods read those of the pod."""
    nodes = spec.placement.nodes or run.NodeChoice()
    return [
        core.Toleration(key=members.OWN_NODES, operator="Exists"),
        *(
            core.Toleration(
                key=each.key, operator=each.operator, value=each.value, effect=each.effect
            )
            for each in nodes.tolerations or ()
        ),
    ]


def _secret_name(owner: run.Run) -> str:
    tail = base64.b32encode(hashlib.sha256(owner.uid.encode()).digest()[:5]).decode().lower()
    return f"{owner.name}-peers-{tail}"


def _env_from(source: run.EnvFrom) -> core.EnvFrom:
    return core.EnvFrom(
        prefix=source.prefix,
        secret_ref=core.EnvFromRef(name=source.secret) if source.secret else None,
        config_map_ref=core.EnvFromRef(name=source.config) if source.config else None,
    )


def _owner(owner: run.Run) -> meta.OwnerReference:
    return meta.OwnerReference(
        api_version=owner.resource.api_version,
        kind=owner.resource.kind,
        name=owner.name,
        uid=owner.uid,
        controller=True,
        block_owner_deletion=True,
    )


def _resource_of(device: str) -> str:
    """The resource of a device in a pod's requests: `gpu/0` -> `windlass.dev/gpu`; a device of
    another plug-in has the resource in its name: `nvidia.com/gpu/0`."""
    name = device.partition(":")[0].rpartition("/")[0]
    return name if "/" in name else members.DEVICE_PREFIX + name


def _count(member: run.Member, kind: str) -> int:
    return sum(
        1
        for device in member.devices or ()
        if members.device_kind(_resource_of(device)) == kind
    )  # fmt: skip


def _numbers(devices: Iterable[str], kind: str) -> list[int]:
    """`gpu/0`, `gpu/3:250` -> 0, 3."""
    names = (device.partition(":")[0] for device in devices)
    return [int(name.rpartition("/")[2]) for name in names if name.rpartition("/")[0] == kind]
