"""How the pod of a member looks, and what of a Run an engine cannot do.

Pure. `control.runmachine` asks for the pods that are missing; `control.snapshots` holds Runs that
cannot be done. What differs between engines is in the `Setting`, as data.
"""

from __future__ import annotations

import base64
import dataclasses
import fractions
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from windlass import frameworks
from windlass.control import engine as engines
from windlass.control import members, podsetup, ports
from windlass.frameworks import group as groups
from windlass.frameworks import order as orders
from windlass.kinds import duration, hostpods, kubernetes, meta, quantity, run
from windlass.kinds.reasons import Reason

AUDIENCE = "windlass"
_VISIBLE = {"gpu": ("CUDA_VISIBLE_DEVICES",), "npu": ("ASCEND_RT_VISIBLE_DEVICES",)}
"""Where no runtime hides devices, programs are told which are theirs."""
_TOKEN_SECONDS = 3600


@dataclasses.dataclass(frozen=True, slots=True)
class Hindrance:
    """Why no pod of an attempt can be made now."""

    reason: Reason = Reason.WAITING_FOR_CAPACITY
    words: str = ""
    """With the remedy; "": nothing stands against it."""
    final: bool = False
    """It will not pass: the attempt ends."""


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """Where an attempt runs, besides its nodes."""

    engine: engines.Engine = dataclasses.field(default_factory=engines.Engine)
    ports: ports.Block | None = None
    """Of the attempt; None: it has none."""
    hindrance: Hindrance = Hindrance()
    addresses: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """By node, where others reach it; an engine of one machine needs none."""


# --- what cannot be done --------------------------------------------------------------------------


def unsupported(spec: run.RunSpec, engine: engines.Engine | None = None) -> str:
    """What of the spec the engine cannot do, with the remedy; "" when all can be done. Without an
    engine: what none can."""
    for mount in spec.mounts or ():
        if mount.source.startswith("dataset:"):
            return (
                f"spec.mounts: {mount.source}: datasets are not there yet; mount a claim or host:"
            )
    if spec.overrides and spec.overrides.resource_claims:
        return (
            "spec.overrides.resourceClaims: devices of Dynamic Resource Allocation cannot be "
            "claimed yet; ask for whole devices in spec.roles[].devices"
        )
    if engine is not None:
        problem = unsupported_by(engine, spec)
        if problem:
            return problem
    for role in spec.roles:
        for device in role.devices or ():
            if device.share and fractions.Fraction(device.share).numerator != 1:
                return f"spec.roles[].devices[].share {device.share}: write it as 1 over a number"
    return _unsupported_bundle(spec)


def unsupported_by(engine: engines.Engine, spec: run.RunSpec) -> str:
    """What another engine could do."""
    environment = spec.environment or run.Environment()
    for mount in spec.mounts or ():
        if mount.source.startswith("claim:") and not engine.claims:
            return f"spec.mounts: {mount.source}: this engine has no claims; mount a host: folder"
    if environment.image and not engine.images:
        return (
            f"spec.environment.image {environment.image}: this engine runs processes on the "
            "machine's own files, not images; leave it out and name packages in "
            "spec.environment.requirements"
        )
    runtime = spec.overrides.runtime_class_name if spec.overrides else None
    if runtime and not engine.images:
        return (
            f"spec.overrides.runtimeClassName {runtime}: this engine runs processes, not "
            "containers, and has no other runtime; leave it out"
        )
    wanted, (low, high) = ports.layout(spec), engine.ports
    if engine.addresses == "node" and wanted and len(wanted.span) > high - low + 1:
        return (
            f"its members need {len(wanted.span)} ports and this engine has {low}-{high}; use "
            "fewer, or widen `ports` in the ConfigMap engine of windlass-system"
        )
    return _unprepared(engine, spec)


def _unprepared(engine: engines.Engine, spec: run.RunSpec) -> str:
    """What must be done inside the pod before its command, and cannot be."""
    several = sum(role.replicas for role in spec.roles) > 1
    if not engine.server:
        if spec.code or podsetup.builds_environment(spec):
            return "spec.code: pods cannot reach the server of this installation; leave it out"
        if engine.addresses == "pod" and spec.framework != "process" and several:
            return (
                f"spec.framework {spec.framework}: its members find each other at the server, and "
                "pods of this installation cannot reach it; name it in `server` of the ConfigMap "
                "engine in windlass-system"
            )
    return ""


def _unsupported_bundle(spec: run.RunSpec) -> str:
    bundle = spec.placement.bundle
    if bundle is None:
        return ""
    if bundle.within == "socket":
        return "spec.placement.bundle.within socket: only numa and pcie are supported; use numa"
    for role in spec.roles:
        kinds = {device.kind for device in role.devices or ()}
        if kinds & set(bundle.devices) and kinds != set(bundle.devices):
            listed = ", ".join(sorted(kinds))
            return f"spec.placement.bundle.devices: name all devices of role {role.name}: {listed}"
    return ""


# --- the pod --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pods:
    """The pods of members of the current assignment, each made when it is asked for: thousands at
    once would hold up everybody else."""

    owner: run.Run
    members: Mapping[tuple[str, int], run.Member]
    """By role and index."""
    setting: Setting
    restarts: Mapping[tuple[str, int], int] = dataclasses.field(default_factory=dict)
    """For which restart within the attempt, where it is one."""

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[kubernetes.Pod]:
        roles = {role.name: role for role in self.owner.spec.roles}
        company: _Company | None = None
        for (role, index), member in sorted(self.members.items(), key=lambda each: each[0]):
            restart = self.restarts.get((role, index), 0)
            made = _Pod(self.owner, roles[role], index, member, self.setting, restart, company)
            # Who the others are is worked out once for all.
            company = company or made.everyone()
            yield dataclasses.replace(made, company=company).render()


def service_of(owner: run.Run, engine: engines.Engine) -> kubernetes.Service | None:
    """Gives members names, where they have addresses of their own; goes with the Run."""
    return podsetup.service(owner, engine, _owner(owner))


def secret_of(owner: run.Run, token: str) -> kubernetes.Secret | None:
    """What members of a run prove themselves with to each other; None if they do not. It must
    exist before their pods start, and goes with the Run."""
    if not frameworks.BY_NAME[owner.spec.framework].secret:
        return None
    return kubernetes.Secret(
        metadata=meta.ObjectMeta(
            name=_secret_name(owner), namespace=owner.namespace, owner_references=[_owner(owner)]
        ),
        type="windlass.dev/peers",
        data={"secret": base64.b64encode(token.encode()).decode()},
        immutable=True,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Company:
    """All members of an attempt."""

    members: Mapping[tuple[str, int], groups.Member]
    """By rank."""
    groups: dict[str, groups.Group] = dataclasses.field(default_factory=dict)
    """As members of each role see it."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Pod:
    owner: run.Run
    role: run.Role
    index: int
    member: run.Member
    setting: Setting
    restart: int = 0
    company: _Company | None = None
    """Who the others are, if somebody has worked that out already."""

    @property
    def _root(self) -> str:
        """Stands for the pod's own folder while texts are put together. No text of a user can
        hold it, because he cannot know the uid when he writes it."""
        return f"<root of {self.owner.uid}>"

    def _filled(self, text: str) -> str:
        return literal(text).replace(self._root, f"$({hostpods.ROOT_VARIABLE})")

    def render(self) -> kubernetes.Pod:
        owner, overrides = self.owner, self.owner.spec.overrides or run.Overrides()
        rendered = frameworks.render(owner.spec.framework, *self._group())
        return kubernetes.Pod(
            metadata=meta.ObjectMeta(
                name=run.pod_name(
                    owner.name, owner.uid, owner.status.attempt, self.role.name, self.index
                ),
                namespace=owner.namespace,
                labels=self._labels(overrides),
                annotations=self._annotations(overrides, rendered),
                owner_references=[_owner(owner)],
            ),
            spec=kubernetes.PodSpec(
                node_name=self.member.node,
                restart_policy="Never",
                termination_grace_period_seconds=duration.seconds(owner.spec.checkpoint.grace),
                enable_service_links=False,
                automount_service_account_token=False,
                tolerations=_tolerations(owner.spec) or None,
                share_process_namespace=self.setting.engine.images or None,
                hostname=f"{self.role.name}-{self.index}" if self._has_names else "",
                subdomain=owner.name if self._has_names else "",
                init_containers=self._before() or None,
                containers=[self._main(overrides, rendered)],
                volumes=[volume for volume, _ in self._volumes()] or None,
                priority_class_name=overrides.priority_class_name or "",
                runtime_class_name=overrides.runtime_class_name,
                image_pull_secrets=[{"name": n} for n in overrides.image_pull_secrets or ()]
                or None,
                security_context=podsetup.pod_security(
                    overrides.security_context, self.setting.engine
                ),
            ),
        )

    def _labels(self, overrides: run.Overrides) -> dict[str, str]:
        return {
            **(overrides.labels or {}),
            run.LABEL_RUN: self.owner.name,
            run.LABEL_ATTEMPT: str(self.owner.status.attempt),
            run.LABEL_ROLE: self.role.name,
            run.LABEL_INDEX: str(self.index),
        }

    def _annotations(self, overrides: run.Overrides, rendered: groups.Rendered) -> dict[str, str]:
        found = {
            **(overrides.annotations or {}),
            hostpods.STOP_SIGNAL: self.owner.spec.checkpoint.signal,
        }
        for ours in (
            members.ANNOTATION_DEVICES, members.ANNOTATION_RESTART, hostpods.PORTS, ports.LAYOUT,
            hostpods.SCRATCH,
        ):  # fmt: skip
            found.pop(ours, None)
        if rendered.scratch:
            found[hostpods.SCRATCH] = rendered.scratch
        if self.restart:
            found[members.ANNOTATION_RESTART] = str(self.restart)
        if self.member.devices:
            found[members.ANNOTATION_DEVICES] = ",".join(self.member.devices)
        if self.setting.ports:
            found |= self.setting.ports.written()
        return found

    # --- containers

    def _main(self, overrides: run.Overrides, rendered: groups.Rendered) -> kubernetes.Container:
        engine, spec = self.setting.engine, self.owner.spec
        command = list(rendered.command)
        if podsetup.builds_environment(spec) or (engine.images and self._is_prepared):
            command = podsetup.entered(command, self._root, engine)
        # Shares are granted by whoever says so on the node; the kubelet counts whole devices only.
        whole = (name for name in self.member.devices or () if ":" not in name)
        devices = Counter(_resource_of(name) for name in whole)
        amounts: kubernetes.Quantities = {
            "cpu": self.role.resources.cpu,
            "memory": self.role.resources.memory,
            **{resource: str(count) for resource, count in devices.items()},
        }
        return kubernetes.Container(
            name=self.role.name,
            image=self._image(),
            image_pull_policy=overrides.image_pull_policy or "",
            command=[self._filled(word) for word in command],
            working_dir=f"{hostpods.ROOT}/code" if self.owner.spec.code else "",
            env=self._environment({} if self._finds_others else rendered.variables),
            env_from=[_env_from(source) for source in self.role.env_from or ()] or None,
            ports=self._ports() or None,
            resources=kubernetes.ResourceRequirements(requests=amounts, limits=amounts),
            volume_mounts=self._mounts_of_members() or None,
            lifecycle=podsetup.lifecycle(spec, engine),
            security_context=podsetup.container_security(engine),
        )

    def _before(self) -> list[kubernetes.Container]:
        """What runs before the member itself, on the same room, so with its resources."""
        if not self._is_prepared:
            return []
        spec, engine = self.owner.spec, self.setting.engine
        group = None
        if self._finds_others:
            group = orders.write(spec.framework, *self._group())
        variables = {
            hostpods.ROOT_VARIABLE: hostpods.ROOT,
            "WINDLASS_NAMESPACE": self.owner.namespace,
            "WINDLASS_RUN": self.owner.name,
            "WINDLASS_SERVER": engine.server,
            "WINDLASS_AUTHORITY": engine.authority,
            podsetup.ORDER: json.dumps(podsetup.order(spec, engine, group)),
        }
        amounts: kubernetes.Quantities = {
            "cpu": self.role.resources.cpu, "memory": self.role.resources.memory,
        }  # fmt: skip
        prepare = kubernetes.Container(
            name=podsetup.PREPARE,
            image=engine.image or hostpods.HOST_IMAGE,
            command=[engine.python, "-I", "-m", "windlass.agent.prepare"],
            # The user's own go along: his index of packages is known by variables.
            env=[
                kubernetes.EnvVar(name=n, value=literal(v))
                for n, v in ((self.role.env or {}) | variables).items()
            ],
            env_from=[_env_from(source) for source in self.role.env_from or ()] or None,
            resources=kubernetes.ResourceRequirements(requests=amounts, limits=amounts),
            volume_mounts=[mount for _, mount in self._volumes()] or None,
            security_context=podsetup.container_security(engine),
        )
        own = podsetup.furnished_in(spec, engine)
        if not own:
            return [prepare]
        furnish = msgspec.structs.replace(
            prepare, name=podsetup.FURNISH, image=own, command=podsetup.furnish_command(own),
            image_pull_policy=(spec.overrides and spec.overrides.image_pull_policy) or "",
            volume_mounts=self._mounts_of_members() or None,
        )  # fmt: skip
        return [prepare, furnish]

    @property
    def _is_prepared(self) -> bool:
        return podsetup.is_needed(self.owner.spec, self.setting.engine, self._size)

    @property
    def _finds_others(self) -> bool:
        return podsetup.finds_others(self.setting.engine, self._size)

    @property
    def _has_names(self) -> bool:
        return podsetup.has_names(self.owner, self.setting.engine, self._size)

    @property
    def _size(self) -> int:
        """Of the attempt."""
        return len(self._group()[0].members)

    def _image(self) -> str:
        environment = self.owner.spec.environment
        own = environment.image if environment else None
        return own or self.setting.engine.image or hostpods.HOST_IMAGE

    def _environment(self, rendered: Mapping[str, str]) -> list[kubernetes.EnvVar]:
        owner = self.owner
        # First, because the others refer to it; the embedded agent has its own word for it.
        found = [kubernetes.EnvVar(name=hostpods.ROOT_VARIABLE, value=hostpods.ROOT)]
        ours = {
            "WINDLASS_RUN": owner.name,
            "WINDLASS_ATTEMPT": str(owner.status.attempt),
            "WINDLASS_ROLE": self.role.name,
            "WINDLASS_INDEX": str(self.index),
            hostpods.PROGRESS_VARIABLE: f"{self._root}/run/progress.json",
            **rendered,
            **self._port_variables(),
            **self._device_variables(),
        }
        if owner.spec.checkpoint.path:
            ours["WINDLASS_CHECKPOINT"] = owner.spec.checkpoint.path
        # What a job prints is looked at while it runs; its own word on it wins.
        usual = {"PYTHONUNBUFFERED": "1"}
        if self.setting.engine.isolation == "container":
            # Whoever it runs as in its image, there is a folder that it may write to.
            usual["HOME"] = f"{self._root}/run"
        merged = {**usual, **(self.role.env or {}), **ours}
        found += [kubernetes.EnvVar(name=n, value=self._filled(v)) for n, v in merged.items()]
        if frameworks.BY_NAME[owner.spec.framework].secret:
            ref = kubernetes.KeyRef(name=_secret_name(owner), key="secret")
            source = kubernetes.EnvVarSource(secret_key_ref=ref)
            found.append(kubernetes.EnvVar(name="WINDLASS_SECRET", value_from=source))
        return found

    # --- who the others are

    def _group(self) -> tuple[groups.Group, groups.Member]:
        company = self.company or self.everyone()
        me = company.members[self.role.name, self.index]
        if self.role.name in company.groups:
            return company.groups[self.role.name], me
        live = self.role.resize == "live" and self.role.min_replicas
        engine, environment = self.setting.engine, self.owner.spec.environment
        own_image = engine.images and environment is not None and environment.image
        group = groups.Group(
            run=self.owner.name,
            uid=self.owner.uid,
            attempt=self.owner.status.attempt,
            members=tuple(company.members.values()),
            command=tuple(self.role.command),
            root=self._root,
            python="python3" if own_image else engine.python,
            companion=f"{self._root}/{podsetup.COMPANION}" if engine.images else "",
            least=self.role.min_replicas or 0 if live else 0,
        )
        company.groups[self.role.name] = group
        return group, me

    def everyone(self) -> _Company:
        return _Company({(each.role, each.index): each for each in self._everyone()})

    def _everyone(self) -> Iterable[groups.Member]:
        spec, assignment = self.owner.spec, self.owner.status.assignment
        current = assignment is not None and assignment.attempt == self.owner.status.attempt
        rooms = assignment.members if assignment is not None and current else {}
        rank, block, engine = 0, self.setting.ports, self.setting.engine
        # Whoever has an address of its own has all its ports.
        usual = engine.ports[0] if engine.addresses == "pod" else 0
        for role in spec.roles:
            listed = rooms.get(role.name) or [self.member] * role.replicas
            count = max(len(listed), self.index + 1 if role.name == self.role.name else 0)
            for index in range(count):
                room = listed[index] if index < len(listed) else self.member
                yield groups.Member(
                    role=role.name,
                    index=index,
                    rank=rank,
                    address=self.setting.addresses.get(room.node, "127.0.0.1"),
                    port=block.port(role.name, index) if block else usual,
                    gpus=_count(room, "gpu"),
                    cpus=max(1, quantity.milli(role.resources.cpu) // 1000),
                    memory=quantity.whole(role.resources.memory),
                )
                rank += 1

    def _ports(self) -> list[kubernetes.ContainerPort]:
        numbers = self._port_numbers()
        return [
            kubernetes.ContainerPort(name=port.name, container_port=numbers[port.name])
            for port in self.role.ports or ()
        ]

    def _port_numbers(self) -> dict[str, int]:
        """Where members share an address, the ports that they name are taken from the block."""
        named = self.role.ports or ()
        if not self.setting.ports:
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
        if self.setting.engine.images:
            return found  # the container's runtime shows it what is its own
        for kind, names in _VISIBLE.items():
            own = ",".join(str(number) for number in _numbers(devices, kind))
            found |= dict.fromkeys(names, own)
        return found

    # --- file trees

    def _mounts_of_members(self) -> list[kubernetes.VolumeMount]:
        """What others than `prepare` see."""
        return [mount for _, mount in self._volumes() if mount.name != "token"]

    def _volumes(self) -> list[tuple[dict[str, Any], kubernetes.VolumeMount]]:
        spec, engine = self.owner.spec, self.setting.engine
        found: list[tuple[dict[str, Any], kubernetes.VolumeMount]] = []

        def add(
            name: str, path: str, source: dict[str, Any], read_only: bool | None = None
        ) -> None:
            mount = kubernetes.VolumeMount(name=name, mount_path=path, read_only=read_only)
            found.append(({"name": name, **source}, mount))

        if engine.images:
            add("run", f"{hostpods.ROOT}/run", {"emptyDir": {}})
        if spec.code:
            add("code", f"{hostpods.ROOT}/code", {"emptyDir": {}})
        if spec.code or self._finds_others:
            token = {
                "audience": AUDIENCE, "expirationSeconds": _TOKEN_SECONDS, "path": "token",
            }  # fmt: skip
            add("token", f"{hostpods.ROOT}/token",
                {"projected": {"sources": [{"serviceAccountToken": token}]}}, True)  # fmt: skip
        if podsetup.builds_environment(spec):
            source = podsetup.environments_volume(engine, self.owner.namespace)
            add("environments", f"{hostpods.ROOT}/environments", source)
        size = podsetup.shared_memory(self.role, engine)
        if size:
            room = {"medium": "Memory", "sizeLimit": size}
            add(members.SHARED_MEMORY, "/dev/shm", {"emptyDir": room})  # noqa: S108
        for number, mount in enumerate(spec.mounts or ()):
            add(f"mount-{number}", mount.path, _mount_source(mount), mount.read_only or None)
        return found


def literal(text: str) -> str:
    """Text that whoever runs the pod gives back as it is: in pods, `$(NAME)` would be filled in."""
    return text.replace("$", "$$")


def _mount_source(mount: run.Mount) -> dict[str, Any]:
    kind, _, name = mount.source.partition(":")
    if kind == "claim":
        claim: dict[str, Any] = {"claimName": name}
        return {"persistentVolumeClaim": claim | ({"readOnly": True} if mount.read_only else {})}
    if kind == "host":
        return {"hostPath": {"path": name}}
    return {"configMap": {"name": name}} if kind == "config" else {"secret": {"secretName": name}}


def _tolerations(spec: run.RunSpec) -> list[kubernetes.Toleration]:
    """The scheduler minds them itself; whoever evicts pods from nodes looks at the pod's own."""
    nodes = spec.placement.nodes or run.NodeChoice()
    return [
        kubernetes.Toleration(key=members.OWN_NODES, operator="Exists"),
        *(
            kubernetes.Toleration(
                key=each.key, operator=each.operator, value=each.value, effect=each.effect
            )
            for each in nodes.tolerations or ()
        ),
    ]


def _secret_name(owner: run.Run) -> str:
    tail = base64.b32encode(hashlib.sha256(owner.uid.encode()).digest()[:5]).decode().lower()
    return f"{owner.name}-peers-{tail}"


def _env_from(source: run.EnvFrom) -> kubernetes.EnvFrom:
    return kubernetes.EnvFrom(
        prefix=source.prefix,
        secret_ref=kubernetes.EnvFromRef(name=source.secret) if source.secret else None,
        config_map_ref=kubernetes.EnvFromRef(name=source.config) if source.config else None,
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
    """What a pod asks for to get a device: `gpu/0` -> `windlass.dev/gpu`; a device of somebody
    else's plug-in has its resource in its name: `nvidia.com/gpu/0`."""
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
