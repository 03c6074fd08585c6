"""The folders of a pod: its root, its volumes, and the mounts of its containers.

    PODS/<uid>/root/            `/windlass` of the pod; WINDLASS_ROOT has its real path
    PODS/<uid>/root/{work,home,tmp}
    PODS/<uid>/volumes/<name>/  contents of the pod's volumes
    PODS/<uid>/messages/<name>  termination message of a container

`prepare` fills them before the first container starts; `container_mounts` returns what the shim of
a container mounts. Without the right to mount, volumes below `/windlass` are symbolic links, and no
other mounts are possible (`agent.pods.validation` rejects them).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from windlass.agent.node import privileges
from windlass.agent.pods import env
from windlass.kinds.annotations import ROOT, TEAM
from windlass.kinds.types import core
from windlass.kinds.values import quantity

SHM, TMP = "/dev/shm", "/tmp"  # noqa: S108 - the names themselves
_RESERVED = (
    "/proc", "/sys", "/dev", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/boot", "/run",
)  # fmt: skip
"""Folders over which a pod with a user of its own mounts nothing."""
_REFRESH = 0.8
"""Fraction of a token's lifetime after which it is renewed."""
_SHORTEST_TOKEN = 600


class TokenSource(Protocol):
    """Requests a pod's token from the API (`serviceaccounts/NAME/token`)."""

    async def request(self, pod: core.Pod, audience: str, seconds: int) -> str: ...


class VolumeRejected(Exception):
    """A volume or mount that this node cannot provide; the message has the remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerMounts:
    """The mounts of a container and its shared memory."""

    mounts: list[dict[str, Any]]
    shm: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PodFolder:
    """The folder of one pod and the user that owns it."""

    path: Path
    user: int | None
    """None: the agent's user."""
    mounts: bool
    teams: Path
    """Contains one folder per namespace, which outlives pods."""
    host_mounts: tuple[str, ...] = ()
    """The folders of the machine that pods with a user of their own may mount."""
    shares_tmp: bool = False
    """A framework of the pod shares a folder in the machine's /tmp with other pods."""

    @property
    def private_tmp(self) -> bool:
        """Whether /tmp of the pod is its own `root/tmp`: what it writes there counts for its disk
        limit, and other users cannot put links in its way. Not if the node itself uses /tmp."""
        used = [self.teams, *_software(), *(Path(each) for each in self.host_mounts)]
        own = not self.shares_tmp and not any(path.is_relative_to(TMP) for path in used)
        return own and self.mounts and self.user is not None

    @property
    def root(self) -> Path:
        return self.path / "root"

    @property
    def seen(self) -> Path:
        """The path of `root` for the pod's processes. With mounts it is the same in all pods of the
        node, so that paths are valid in other pods of a run and in environments that were built in
        another pod. On the machine itself it is an empty folder."""
        return self.teams.parent / "self" if self.mounts else self.root

    def inside(self, path: str) -> Path | None:
        """The real path of a path below `/windlass`; None for any other path."""
        plain = os.path.normpath(path)
        if plain != ROOT and not plain.startswith(ROOT + "/"):
            return None
        return self.root / plain[len(ROOT) :].lstrip("/")

    def mapped(self, path: str) -> str:
        """A path of the pod spec as the pod's processes see it."""
        inside = self.inside(path)
        return path if inside is None else str(self.seen / inside.relative_to(self.root))

    def message(self, container: str) -> Path:
        return self.path / "messages" / container

    def volume(self, name: str) -> Path:
        return self.path / "volumes" / name

    def make(self) -> None:
        """Creates the folders of the pod: accessible only to its user, records only to the
        agent."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.mounts:
            self.seen.mkdir(parents=True, exist_ok=True, mode=0o711)
        (self.path / "containers").mkdir(exist_ok=True, mode=0o700)
        for folder in ("volumes", "messages"):
            (self.path / folder).mkdir(exist_ok=True, mode=0o711)
        for folder in ("", "work", "home", "tmp", "run"):
            made = self.root / folder
            if not made.exists():
                made.mkdir(mode=0o700)
                self.give(made)
        if self.user is not None:
            self.path.chmod(0o711)

    def give(self, path: Path) -> None:
        """Makes the pod's user the owner of `path`."""
        if self.user is not None:
            os.chown(path, self.user, self.user, follow_symlinks=False)


async def prepare(
    pod: core.Pod,
    folder: PodFolder,
    sources: env.Sources,
    tokens: TokenSource | None,
    facts: Mapping[str, str],
) -> None:
    """Creates the pod's folders and fills its volumes. Idempotent."""
    folder.make()
    for volume in pod.spec.volumes or ():
        await _fill(pod, volume, folder, sources, tokens, facts)
    for container in [*(pod.spec.init_containers or ()), *pod.spec.containers]:
        message = folder.message(container.name)
        if not message.exists():
            message.touch(mode=0o600)
            folder.give(message)
        for mount in container.volume_mounts or ():
            _prepare_target(pod, mount, folder)


async def refresh(pod: core.Pod, folder: PodFolder, tokens: TokenSource | None) -> float | None:
    """Renews the pod's tokens when due. Returns the seconds until the next renewal; None if the pod
    has no tokens."""
    waits = []
    for name, path, source in _token_files(pod):
        file = folder.volume(name) / path
        life = _life(source)
        try:
            age = time.time() - file.stat().st_mtime
        except FileNotFoundError:
            continue
        if age >= life * _REFRESH and tokens is not None:
            text = await tokens.request(pod, source.get("audience", ""), life)
            _write(folder, file, text.encode(), 0o600)
            age = 0.0
        waits.append(max(1.0, life * _REFRESH - age))
    return min(waits, default=None)


def container_mounts(
    pod: core.Pod, container: core.Container, folder: PodFolder
) -> ContainerMounts:
    """The mounts of one container, in order, and its shared memory."""
    mounts = _hiding_mounts(folder) if folder.user is not None else []
    if folder.mounts:
        own = {"source": str(folder.root), "target": str(folder.seen), "readOnly": False}
        mounts.append({"kind": "bind", **own})
    if folder.private_tmp:
        mounts.append({"kind": "bind", "source": str(folder.root / "tmp"), "target": TMP})
    shm = None
    volumes = {str(volume["name"]): volume for volume in pod.spec.volumes or ()}
    for mount in container.volume_mounts or ():
        volume = volumes[mount.name]
        if is_shm(volume, mount):
            shm = _shared_memory(volume, folder)
            if folder.mounts:
                mounts.append({"kind": "tmpfs", "target": SHM, "mode": "1777", "size": shm["size"]})
        elif folder.mounts:
            target = mount_target(mount.mount_path, folder)
            source = _bind_source(volume, mount, folder, pod)
            read_only = bool(mount.read_only)
            mounts.append({"kind": "bind", **source, "target": target, "readOnly": read_only})
    if folder.mounts and folder.user is not None:
        # Last, because the shim makes the other mounts through /proc.
        mounts.append({"kind": "proc", "target": "/proc"})
    return ContainerMounts(mounts, shm)


def is_shm(volume: Mapping[str, Any], mount: core.VolumeMount) -> bool:
    empty = volume.get("emptyDir") or {}
    return empty.get("medium") == "Memory" and os.path.normpath(mount.mount_path) == SHM


def too_little_shm(pod: core.Pod) -> str:
    """Without the right to mount: a message if the machine's /dev/shm has less free space than the
    pod requests; else an empty string."""
    volumes = {str(volume["name"]): volume for volume in pod.spec.volumes or ()}
    for container in pod.spec.containers:
        for mount in container.volume_mounts or ():
            volume = volumes.get(mount.name, {})
            size = _size(volume) if is_shm(volume, mount) else None
            free = shutil.disk_usage(SHM).free if size else 0
            if size and free < size:
                return (
                    f"container {container.name} asks for {quantity.of_bytes(size)} of shared "
                    f"memory, but /dev/shm of this machine has {free >> 20}Mi free and cannot be "
                    "changed without root; ask for less, or run: mount -o remount,size="
                    f"{quantity.of_bytes(size)} /dev/shm"
                )
    return ""


def remove(path: Path) -> None:
    """Removes a pod's folder, including folders to which the job removed its own access."""
    shutil.rmtree(path, ignore_errors=True)
    if not path.exists():
        return
    for folder, names, _ in os.walk(path):
        for name in names:
            inner = os.path.join(folder, name)
            if not os.path.islink(inner):
                with contextlib.suppress(OSError):
                    os.chmod(inner, 0o700)
    shutil.rmtree(path)


# --- the contents of volumes


async def _fill(
    pod: core.Pod,
    volume: Mapping[str, Any],
    folder: PodFolder,
    sources: env.Sources,
    tokens: TokenSource | None,
    facts: Mapping[str, str],
) -> None:
    target = folder.volume(str(volume["name"]))
    if "emptyDir" in volume:
        if not target.exists():
            target.mkdir(mode=0o700)
            folder.give(target)
        return
    if "hostPath" in volume:
        _check_host_path(volume, folder, pod)
        return
    target.mkdir(exist_ok=True, mode=0o755)
    parts = (volume["projected"].get("sources") or ()) if "projected" in volume else (volume,)
    default_mode = (volume.get("projected") or {}).get("defaultMode")
    for part in parts:
        for path, content, mode in await _files(pod, part, sources, tokens, facts):
            _write(folder, target / path, content, mode or default_mode or 0o644)


async def _files(
    pod: core.Pod,
    part: Mapping[str, Any],
    sources: env.Sources,
    tokens: TokenSource | None,
    facts: Mapping[str, str],
) -> list[tuple[str, bytes, int | None]]:
    """Path, content and mode of each file of one source of a volume."""
    for key, kind in (("secret", "Secret"), ("configMap", "ConfigMap")):
        if key in part:
            return await _values(kind, part[key], sources)
    if "downwardAPI" in part:
        given = part["downwardAPI"]
        return [
            (item["path"], _downward(pod, item, facts).encode(),
             item.get("mode") or given.get("defaultMode"))
            for item in given.get("items") or ()
        ]  # fmt: skip
    source = part["serviceAccountToken"]
    if tokens is None:
        raise env.MissingError("this agent cannot request tokens")
    text = await tokens.request(pod, source.get("audience", ""), _life(source))
    return [(source["path"], text.encode(), 0o600)]


async def _values(
    kind: str, given: Mapping[str, Any], sources: env.Sources
) -> list[tuple[str, bytes, int | None]]:
    name = given.get("secretName") or given.get("name") or ""
    values = await sources.binary(kind, name)
    if values is None:
        if given.get("optional"):
            return []
        raise env.MissingError(f'{kind} "{name}" not found')
    usual = given.get("defaultMode")
    if not given.get("items"):
        return [(key, content, usual) for key, content in values.items()]
    found = []
    for item in given["items"]:
        if item["key"] in values:
            found.append((item["path"], values[item["key"]], item.get("mode") or usual))
        elif not given.get("optional"):
            raise env.MissingError(f'{kind} "{name}" has no key "{item["key"]}"')
    return found


def _downward(pod: core.Pod, item: Mapping[str, Any], facts: Mapping[str, str]) -> str:
    if item.get("resourceFieldRef"):
        return env.resource_field(pod, item["resourceFieldRef"], None)
    path = item["fieldRef"]["fieldPath"]
    if path in ("metadata.labels", "metadata.annotations"):
        found = getattr(pod.metadata, path.partition(".")[2]) or {}
        return "\n".join(f"{key}={json.dumps(value)}" for key, value in sorted(found.items()))
    return env.field(pod, path, facts)


def _write(folder: PodFolder, path: Path, content: bytes, mode: int) -> None:
    """Writes a file atomically. The agent owns these folders: a pod cannot insert a link."""
    volumes = folder.path / "volumes"
    if ".." in path.relative_to(volumes).parts:
        raise VolumeRejected(f"a volume's path leads out of it: {path.name}")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    fresh = path.with_name(f".{path.name}.new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    folder.give(fresh)
    fresh.chmod(mode)
    fresh.replace(path)


def _token_files(pod: core.Pod) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for volume in pod.spec.volumes or ():
        for part in (volume.get("projected") or {}).get("sources") or ():
            if "serviceAccountToken" in part:
                source = part["serviceAccountToken"]
                yield str(volume["name"]), source["path"], source


def _life(source: Mapping[str, Any]) -> int:
    return max(_SHORTEST_TOKEN, int(source.get("expirationSeconds") or 3600))


# --- mounts


def _bind_source(
    volume: Mapping[str, Any], mount: core.VolumeMount, folder: PodFolder, pod: core.Pod
) -> dict[str, Any]:
    """What the shim binds. It follows no links in `below`; it opens folders of the machine with the
    rights of the pod's user."""
    path = _source(volume, folder, pod)
    if "hostPath" not in volume:
        return {"source": str(path), "below": mount.sub_path}
    if path.is_relative_to(folder.teams):
        base = folder.teams / pod.namespace
        below = path.relative_to(base) / mount.sub_path.lstrip("/")
        return {"source": str(base), "below": str(below)}
    if folder.user is None:
        return {"source": str(path), "below": mount.sub_path}
    resolved = _allowed(volume, path, folder, pod)
    below = resolved / mount.sub_path.lstrip("/")
    return {"source": "/", "below": str(below), "user": folder.user}


def mount_target(mount_path: str, folder: PodFolder) -> str:
    """The path that the shim mounts over, without symbolic links. Raises VolumeRejected for folders
    on which the isolation of the pod depends."""
    if folder.inside(mount_path) is not None:
        return folder.mapped(mount_path)
    path = _resolved(mount_path, folder)
    own = [folder.teams.parent, *_software()]
    reserved = [Path(each) for each in _RESERVED] if folder.user is not None else [Path("/proc")]
    for each in [*reserved, *own]:
        if Path(path).is_relative_to(each) or each.is_relative_to(path):
            raise VolumeRejected(
                f"mountPath {mount_path} would hide {each}, which the node needs to run the pod; "
                f"mount below {ROOT}"
            )
    return path


def _source(volume: Mapping[str, Any], folder: PodFolder, pod: core.Pod) -> Path:
    if "hostPath" in volume:
        return _host_path(volume, folder, pod)
    return folder.volume(str(volume["name"]))


def _host_path(volume: Mapping[str, Any], folder: PodFolder, pod: core.Pod) -> Path:
    path = os.path.normpath(str(volume["hostPath"]["path"]))
    if path == TEAM or path.startswith(TEAM + "/"):
        return folder.teams / pod.namespace / path[len(TEAM) :].lstrip("/")
    return Path(path)


def _check_host_path(volume: Mapping[str, Any], folder: PodFolder, pod: core.Pod) -> None:
    path = _host_path(volume, folder, pod)
    if path.is_relative_to(folder.teams):
        _make_team_folder(path, folder, pod)
        return
    what, given = _mount_of(volume, pod), volume["hostPath"].get("type") or ""
    # Before anything else, so that no answer tells which files exist.
    resolved = _allowed(volume, path, folder, pod)
    wanted = {"Directory": path.is_dir, "DirectoryOrCreate": path.is_dir, "File": path.is_file,
              "FileOrCreate": path.is_file, "": path.exists}  # fmt: skip
    if given not in wanted:
        raise VolumeRejected(f"{what}: hostPath type {given} is not supported; leave it out")
    if not wanted[given]():
        kind = f" ({given})" if given else ""
        raise VolumeRejected(f"{what}: {path}{kind} is not on this node; make it there")
    closed = privileges.closed_above(resolved, folder.user) if folder.user is not None else None
    if closed is not None:
        raise VolumeRejected(
            f"{what}: {path} is closed to user {folder.user}, which namespace "
            f"{pod.namespace} runs as: let others through ({closed}: chmod o+x), or start the "
            "engine with --isolation process"
        )


def _mount_of(volume: Mapping[str, Any], pod: core.Pod) -> str:
    """A volume as its author knows it: by its first mount path."""
    containers = [*(pod.spec.init_containers or ()), *pod.spec.containers]
    paths = [
        mount.mount_path
        for container in containers
        for mount in container.volume_mounts or ()
        if mount.name == volume["name"]
    ]
    return f"mount at {paths[0]}" if paths else f"volume {volume['name']}"


def _allowed(volume: Mapping[str, Any], path: Path, folder: PodFolder, pod: core.Pod) -> Path:
    """The path without symbolic links, if the pod may mount it."""
    resolved = path.resolve()
    if folder.user is None:
        return resolved
    if any(resolved.is_relative_to(Path(each).resolve()) for each in folder.host_mounts):
        return resolved
    raise VolumeRejected(
        f"{_mount_of(volume, pod)}: {path} is not a folder that pods of namespace {pod.namespace} "
        f"may mount; the administrator allows it with windlass up --host-mounts {path}"
    )


def _make_team_folder(path: Path, folder: PodFolder, pod: core.Pod) -> None:
    """Creates a folder of the namespace that outlives its pods. Links are not followed, because the
    contents belong to the team."""
    base = folder.teams / pod.namespace
    if not base.exists():
        base.mkdir(parents=True, mode=0o700)
        folder.give(base)
    _make_below(base, str(path.relative_to(base)), folder)


def _make_below(base: Path, below: str, folder: PodFolder) -> None:
    handle = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in [part for part in below.split("/") if part not in ("", ".")]:
            if part == "..":
                raise VolumeRejected(f"subPath {below} leads out of its volume")
            made = False
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=handle)
                made = True
            flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_PATH
            fresh = os.open(part, flags, dir_fd=handle)
            if made and folder.user is not None:
                os.chown(part, folder.user, folder.user, dir_fd=handle, follow_symlinks=False)
            os.close(handle)
            handle = fresh
    finally:
        os.close(handle)


def _prepare_target(pod: core.Pod, mount: core.VolumeMount, folder: PodFolder) -> None:
    """Creates the target of a mount in the pod's folder; a target elsewhere must exist."""
    volume = next(each for each in pod.spec.volumes or () if each["name"] == mount.name)
    if is_shm(volume, mount):
        return
    source = _source(volume, folder, pod)
    if mount.sub_path and "hostPath" not in volume:
        _make_below(source, mount.sub_path, folder)
    target = folder.inside(mount.mount_path)
    if target is None:
        elsewhere = Path(mount_target(mount.mount_path, folder))
        if folder.private_tmp and elsewhere.is_relative_to(TMP):
            inside = folder.root / "tmp" / elsewhere.relative_to(TMP)
            _make_target(source / mount.sub_path, inside, folder)
            return
        if not _exists_for(elsewhere, folder) and not _is_hidden(elsewhere, folder):
            closed = "" if folder.user is None else f", or is closed to user {folder.user}"
            raise VolumeRejected(
                f"mountPath {mount.mount_path} does not exist on this node{closed}: make it there "
                f"(mkdir -p {mount.mount_path}), or mount below {ROOT}"
            )
        return
    if folder.mounts:
        _make_target(source / mount.sub_path, target, folder)
        return
    wanted = source / mount.sub_path
    if target.is_symlink() and target.readlink() == wanted:
        return
    if target.exists() or target.is_symlink():
        with contextlib.suppress(OSError):
            target.rmdir()  # an empty folder that the agent created, such as `run`
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        target.symlink_to(wanted)
    except FileExistsError:
        raise VolumeRejected(
            f"two volumes are mounted at {mount.mount_path}; without root each needs its own path"
        ) from None


def _resolved(mount_path: str, folder: PodFolder) -> str:
    if folder.user is None:
        return os.path.realpath(mount_path)
    return str(privileges.resolved_for(mount_path, folder.user))


def _exists_for(path: Path, folder: PodFolder) -> bool:
    """Whether the pod's user finds something there. For what is closed to that user the answer is
    no, whether it exists or not."""
    return (folder.user is None or privileges.reachable(path, folder.user)) and path.exists()


def _make_target(source: Path, target: Path, folder: PodFolder) -> None:
    relative = target.relative_to(folder.root)
    if source.is_file():
        _make_below(folder.root, str(relative.parent), folder)
        if not target.exists():
            target.touch(mode=0o600)
            folder.give(target)
    else:
        _make_below(folder.root, str(relative), folder)


def _hiding_mounts(folder: PodFolder) -> list[dict[str, Any]]:
    """Mounts that make the pod's folder and Python reachable below folders that the pod's user may
    not traverse: an empty tmpfs over the closed folder, with bind mounts in it. The other contents
    of the closed folder stay hidden."""
    mounts: list[dict[str, Any]] = []
    for path, read_only in [(folder.path, False), *((each, True) for each in _software())]:
        closed = privileges.closed_above(path / "x", folder.user or 0)
        if closed is None:
            continue
        if str(closed) not in [mount["target"] for mount in mounts]:
            mounts.append({"kind": "tmpfs", "target": str(closed), "size": 1 << 20})
        bind = {"source": str(path), "target": str(path), "readOnly": read_only}
        mounts.append({"kind": "bind", **bind})
    return mounts


def _is_hidden(path: Path, folder: PodFolder) -> bool:
    """Whether a mount of `_hiding_mounts` covers the path."""
    return any(
        mount["kind"] == "tmpfs" and path.is_relative_to(mount["target"])
        for mount in (_hiding_mounts(folder) if folder.user is not None else ())
    )


def _software() -> Sequence[Path]:
    return privileges.own_software()


def _size(volume: Mapping[str, Any]) -> int | None:
    given = (volume.get("emptyDir") or {}).get("sizeLimit")
    return quantity.whole(given) if given else None


def _shared_memory(volume: Mapping[str, Any], folder: PodFolder) -> dict[str, Any]:
    size = _size(volume) or shutil.disk_usage(SHM).total
    return {"path": SHM, "size": size, "private": folder.mounts}
