"""The folders of a pod: its own, its volumes, and where each container sees them.

    PODS/<uid>/root/            what `/windlass` means to the pod; WINDLASS_ROOT says so
    PODS/<uid>/root/{work,home,tmp}
    PODS/<uid>/volumes/<name>/  what the pod's volumes hold
    PODS/<uid>/messages/<name>  the container's last words, for us to read

`prepare` fills them before the first container starts; `view` says what one container's shim has
to mount. Where mounts are not permitted, volumes below `/windlass` are links, and no others are
possible (`agent.support` refuses them).
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

from windlass.agent import environment, privileges
from windlass.kinds import hostpods, kubernetes, quantity

SHM = "/dev/shm"  # noqa: S108 - the name itself
_REFRESH = 0.8
"""Of a token's life, after which the next one is asked for."""
_SHORTEST_TOKEN = 600


class TokenSource(Protocol):
    """Asks the API for a pod's token (`serviceaccounts/NAME/token`)."""

    async def request(self, pod: kubernetes.Pod, audience: str, seconds: int) -> str: ...


class RefusedError(Exception):
    """The pod can never be given this; the message has the remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """What a container sees."""

    mounts: list[dict[str, Any]]
    shm: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PodFolder:
    """The folder of one pod and whose it is."""

    path: Path
    user: int | None
    """None: the agent's own."""
    mounts: bool
    teams: Path
    """Holds one folder per namespace that outlives pods."""

    @property
    def root(self) -> Path:
        return self.path / "root"

    @property
    def seen(self) -> Path:
        """What the pod's processes call `root`: where mounts are permitted, the same in all pods
        of the node, so that members of a run, and environments that were built in another pod, can
        name paths. On the machine itself it is an empty folder of the agent's."""
        return self.teams.parent / "self" if self.mounts else self.root

    def inside(self, path: str) -> Path | None:
        """Where a path below `/windlass` really is; None for any other."""
        plain = os.path.normpath(path)
        if plain != hostpods.ROOT and not plain.startswith(hostpods.ROOT + "/"):
            return None
        return self.root / plain[len(hostpods.ROOT) :].lstrip("/")

    def mapped(self, path: str) -> str:
        """A path of the pod's as its processes see it."""
        inside = self.inside(path)
        return path if inside is None else str(self.seen / inside.relative_to(self.root))

    def message(self, container: str) -> Path:
        return self.path / "messages" / container

    def volume(self, name: str) -> Path:
        return self.path / "volumes" / name

    def make(self) -> None:
        """The folders every pod has. Closed to all but the pod's user; records stay ours."""
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
        """Makes the pod's user its owner."""
        if self.user is not None:
            os.chown(path, self.user, self.user, follow_symlinks=False)


async def prepare(
    pod: kubernetes.Pod,
    folder: PodFolder,
    sources: environment.Sources,
    tokens: TokenSource | None,
    facts: Mapping[str, str],
) -> None:
    """Everything the pod's containers will see. May be done again: finds what is there."""
    folder.make()
    for volume in pod.spec.volumes or ():
        await _fill(pod, volume, folder, sources, tokens, facts)
    for container in [*(pod.spec.init_containers or ()), *pod.spec.containers]:
        message = folder.message(container.name)
        if not message.exists():
            message.touch(mode=0o600)
            folder.give(message)
        for mount in container.volume_mounts or ():
            _place(pod, mount, folder)


async def refresh(
    pod: kubernetes.Pod, folder: PodFolder, tokens: TokenSource | None
) -> float | None:
    """Renews the pod's tokens in time; seconds until the next look, if it has any."""
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


def view(pod: kubernetes.Pod, container: kubernetes.Container, folder: PodFolder) -> View:
    """The mounts of one container, in order, and its shared memory."""
    mounts = _curtain(folder) if folder.user is not None else []
    if folder.mounts:
        own = {"source": str(folder.root), "target": str(folder.seen), "readOnly": False}
        mounts.append({"kind": "bind", **own})
    shm = None
    volumes = {str(volume["name"]): volume for volume in pod.spec.volumes or ()}
    for mount in container.volume_mounts or ():
        volume = volumes[mount.name]
        if is_shm(volume, mount):
            shm = _shared_memory(volume, folder)
            if folder.mounts:
                mounts.append({"kind": "tmpfs", "target": SHM, "mode": "1777", "size": shm["size"]})
        elif folder.mounts:
            target = folder.mapped(mount.mount_path)
            source = {"source": str(_source(volume, folder, pod)), "below": mount.sub_path}
            read_only = bool(mount.read_only)
            mounts.append({"kind": "bind", **source, "target": target, "readOnly": read_only})
    if folder.mounts and folder.user is not None:
        # Last, because the others are found through /proc: what other users run is theirs.
        mounts.append({"kind": "proc", "target": "/proc"})
    return View(mounts, shm)


def is_shm(volume: Mapping[str, Any], mount: kubernetes.VolumeMount) -> bool:
    empty = volume.get("emptyDir") or {}
    return empty.get("medium") == "Memory" and os.path.normpath(mount.mount_path) == SHM


def too_little_shm(pod: kubernetes.Pod) -> str:
    """Without mounts of our own: whether the machine's /dev/shm has what the pod asks for."""
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
    """Takes a pod's folder away, folders that the job closed to itself included."""
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


# --- what volumes hold


async def _fill(
    pod: kubernetes.Pod,
    volume: Mapping[str, Any],
    folder: PodFolder,
    sources: environment.Sources,
    tokens: TokenSource | None,
    facts: Mapping[str, str],
) -> None:
    place = folder.volume(str(volume["name"]))
    if "emptyDir" in volume:
        if not place.exists():
            place.mkdir(mode=0o700)
            folder.give(place)
        return
    if "hostPath" in volume:
        _check_host_path(volume, folder, pod)
        return
    place.mkdir(exist_ok=True, mode=0o755)
    parts = (volume["projected"].get("sources") or ()) if "projected" in volume else (volume,)
    default_mode = (volume.get("projected") or {}).get("defaultMode")
    for part in parts:
        for path, content, mode in await _files(pod, part, sources, tokens, facts):
            _write(folder, place / path, content, mode or default_mode or 0o644)


async def _files(
    pod: kubernetes.Pod,
    part: Mapping[str, Any],
    sources: environment.Sources,
    tokens: TokenSource | None,
    facts: Mapping[str, str],
) -> list[tuple[str, bytes, int | None]]:
    """(path, content, mode) of one source of a volume."""
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
        raise environment.MissingError("this agent has no way to ask for a token")
    text = await tokens.request(pod, source.get("audience", ""), _life(source))
    return [(source["path"], text.encode(), 0o600)]


async def _values(
    kind: str, given: Mapping[str, Any], sources: environment.Sources
) -> list[tuple[str, bytes, int | None]]:
    name = given.get("secretName") or given.get("name") or ""
    values = await sources.binary(kind, name)
    if values is None:
        if given.get("optional"):
            return []
        raise environment.MissingError(f'{kind} "{name}" not found')
    usual = given.get("defaultMode")
    if not given.get("items"):
        return [(key, content, usual) for key, content in values.items()]
    found = []
    for item in given["items"]:
        if item["key"] in values:
            found.append((item["path"], values[item["key"]], item.get("mode") or usual))
        elif not given.get("optional"):
            raise environment.MissingError(f'{kind} "{name}" has no key "{item["key"]}"')
    return found


def _downward(pod: kubernetes.Pod, item: Mapping[str, Any], facts: Mapping[str, str]) -> str:
    if item.get("resourceFieldRef"):
        return environment.resource_field(pod, item["resourceFieldRef"], None)
    path = item["fieldRef"]["fieldPath"]
    if path in ("metadata.labels", "metadata.annotations"):
        found = getattr(pod.metadata, path.partition(".")[2]) or {}
        return "\n".join(f"{key}={json.dumps(value)}" for key, value in sorted(found.items()))
    return environment.field(pod, path, facts)


def _write(folder: PodFolder, path: Path, content: bytes, mode: int) -> None:
    """Whole or not at all. The folders here are ours: the pod cannot put a link in the way."""
    place = folder.path / "volumes"
    if ".." in path.relative_to(place).parts:
        raise RefusedError(f"a volume's path leads out of it: {path.name}")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    fresh = path.with_name(f".{path.name}.new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    folder.give(fresh)
    fresh.chmod(mode)
    fresh.replace(path)


def _token_files(pod: kubernetes.Pod) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for volume in pod.spec.volumes or ():
        for part in (volume.get("projected") or {}).get("sources") or ():
            if "serviceAccountToken" in part:
                source = part["serviceAccountToken"]
                yield str(volume["name"]), source["path"], source


def _life(source: Mapping[str, Any]) -> int:
    return max(_SHORTEST_TOKEN, int(source.get("expirationSeconds") or 3600))


# --- where containers see them


def _source(volume: Mapping[str, Any], folder: PodFolder, pod: kubernetes.Pod) -> Path:
    if "hostPath" in volume:
        return _host_path(volume, folder, pod)
    return folder.volume(str(volume["name"]))


def _host_path(volume: Mapping[str, Any], folder: PodFolder, pod: kubernetes.Pod) -> Path:
    path = os.path.normpath(str(volume["hostPath"]["path"]))
    if path == hostpods.TEAM or path.startswith(hostpods.TEAM + "/"):
        return folder.teams / pod.namespace / path[len(hostpods.TEAM) :].lstrip("/")
    return Path(path)


def _check_host_path(volume: Mapping[str, Any], folder: PodFolder, pod: kubernetes.Pod) -> None:
    path = _host_path(volume, folder, pod)
    if path.is_relative_to(folder.teams):
        _make_team_folder(path, folder, pod)
        return
    name, given = volume["name"], volume["hostPath"].get("type") or ""
    wanted = {"Directory": path.is_dir, "DirectoryOrCreate": path.is_dir, "File": path.is_file,
              "FileOrCreate": path.is_file, "": path.exists}  # fmt: skip
    if given not in wanted:
        raise RefusedError(f"volume {name}: hostPath type {given} is not supported; leave it out")
    if not wanted[given]():
        what = f" ({given})" if given else ""
        raise RefusedError(f"volume {name}: {path}{what} is not on this node; make it there")
    if folder.user is None:
        return
    closed = privileges.closed_above(path.resolve(), folder.user)
    if closed is not None:
        raise RefusedError(
            f"volume {name}: {path} is closed to user {folder.user}, which namespace "
            f"{pod.namespace} runs as: let others through ({closed}: chmod o+x), or start the "
            "engine with --isolation process"
        )


def _make_team_folder(path: Path, folder: PodFolder, pod: kubernetes.Pod) -> None:
    """A folder of the namespace that outlives its pods; each step is made without following a
    link, because what is inside belongs to the team."""
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
                raise RefusedError(f"subPath {below} leads out of its volume")
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


def _place(pod: kubernetes.Pod, mount: kubernetes.VolumeMount, folder: PodFolder) -> None:
    """The place where a mount will be: in the pod's own folder we make it, elsewhere it must be."""
    volume = next(each for each in pod.spec.volumes or () if each["name"] == mount.name)
    if is_shm(volume, mount):
        return
    source = _source(volume, folder, pod)
    if mount.sub_path and "hostPath" not in volume:
        _make_below(source, mount.sub_path, folder)
    target = folder.inside(mount.mount_path)
    if target is None:
        elsewhere = Path(mount.mount_path)
        if not elsewhere.exists() and not _behind_curtain(elsewhere, folder):
            raise RefusedError(
                f"mountPath {mount.mount_path} does not exist on this node: make it there "
                f"(mkdir -p {mount.mount_path}), or mount below {hostpods.ROOT}"
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
            target.rmdir()  # an empty folder of ours, such as `run`
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        target.symlink_to(wanted)
    except FileExistsError:
        raise RefusedError(
            f"two volumes are mounted at {mount.mount_path}; without root each needs its own place"
        ) from None


def _make_target(source: Path, target: Path, folder: PodFolder) -> None:
    relative = target.relative_to(folder.root)
    if source.is_file():
        _make_below(folder.root, str(relative.parent), folder)
        if not target.exists():
            target.touch(mode=0o600)
            folder.give(target)
    else:
        _make_below(folder.root, str(relative), folder)


def _curtain(folder: PodFolder) -> list[dict[str, Any]]:
    """What closed folders hide from the pod's user stays hidden behind an empty one, but the way
    to the pod's own folder, and to Python, is open."""
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


def _behind_curtain(path: Path, folder: PodFolder) -> bool:
    return any(
        mount["kind"] == "tmpfs" and path.is_relative_to(mount["target"])
        for mount in (_curtain(folder) if folder.user is not None else ())
    )


def _software() -> Sequence[Path]:
    return privileges.own_software()


def _size(volume: Mapping[str, Any]) -> int | None:
    given = (volume.get("emptyDir") or {}).get("sizeLimit")
    return quantity.whole(given) if given else None


def _shared_memory(volume: Mapping[str, Any], folder: PodFolder) -> dict[str, Any]:
    size = _size(volume) or shutil.disk_usage(SHM).total
    return {"path": SHM, "size": size, "private": folder.mounts}
