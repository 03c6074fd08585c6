"""Container images made from local files: no registry, no Docker.

Used by `kubelet`, which hands them to containerd. `pause` is busybox asleep; the platform image is
this machine's Python with this checkout's package, the packages it depends on, every shared
library they load, and busybox as a shell: the same paths for what pods refer to as in the image of
deploy/Containerfile, which `containerfile` builds and which takes longer.
Archives are kept by content in the cache, outside the checkout.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import inspect
import io
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import windlass
from tests.harness import build

PAUSE = "windlass.dev/pause:test"
PLATFORM = f"windlass.dev/windlass:{windlass.__version__}"
BARE = "windlass.dev/bare:test"
OWN = "windlass.dev/own:test"
USER = 10001
"""The user that the platform image runs as."""
PYTHON = "/usr/local/bin/python3"
"""Where the platform image has its Python, as in the official image of Python."""

_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_REPOSITORY = Path(__file__).resolve().parents[2]
_KEPT = {
    "*.tar": 8, "layer-shell-*": 4, "layer-python-*": 3, "layer-package-*": 6,
    "layer-debian-*": 2, "layer-base-*": 2,
}  # fmt: skip
"""How many of each stay in the cache: several checkouts may share it."""
_ENVIRONMENT = ("PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp", "LANG=C.UTF-8")
_NOT_IN_PODS = {
    "__pycache__", "site-packages", "test", "tests", "idlelib", "ensurepip", "tkinter",
    "turtledemo", "lib2to3",
}  # fmt: skip
_EXTRA = re.compile("extra == ['\"]node['\"]")
"""What the agent needs to ask a kubelet; deploy/Containerfile names it, too."""
_APPLETS = (
    "ash", "awk", "base64", "basename", "cat", "chmod", "cp", "cut", "date", "dd", "df", "dirname",
    "du", "echo", "env", "expr", "false", "find", "free", "grep", "head", "hostname", "id", "kill",
    "ln", "ls", "md5sum", "mkdir", "mount", "mv", "nc", "nproc", "od", "printf", "ps", "pwd",
    "readlink", "rm", "rmdir", "sed", "seq", "sh", "sha256sum", "sleep", "sort", "stat", "tail",
    "tar", "tee", "test", "touch", "tr", "true", "tty", "umount", "uname", "uniq", "wc", "wget",
    "which", "whoami", "xargs",
)  # fmt: skip


_BESIDE_LIBC = (
    "dl", "gcc_s", "m", "nss_dns", "nss_files", "pthread", "resolv", "rt", "stdc++", "util", "z",
)  # fmt: skip


def cache_dir() -> Path:
    return build.cache_dir().parent.parent / "images"


def pause() -> Path:
    """An archive of the image that holds a pod's namespaces."""
    return archive(PAUSE, [_shell_layer()], entrypoint=["/bin/sleep", "inf"])


def platform() -> Path:
    """An archive of the image that Windlass' own parts and pods without an image run in."""
    layers = [
        _shell_layer(),
        _python_layer(),
        Layer("package", digest(recipe(_write_package), *_package_state()), _write_package),
    ]
    return archive(PLATFORM, layers, user=f"{USER}:{USER}")


def own() -> Path:
    """An archive of an image as a user may have it: Python, and nothing of ours."""
    return archive(OWN, [_shell_layer(), _python_layer()])


def bare() -> Path:
    """An archive of an image as small as they come: one static program, no shell, no library."""
    return archive(BARE, [Layer("bare", digest(recipe(_write_bare)), _write_bare)])


# --- archives -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Layer:
    name: str
    key: str
    """Of what it is made from."""
    write: Any


def archive(
    name: str,
    layers: list[Layer],
    entrypoint: list[str] | None = None,
    user: str = "",
    environment: Iterable[str] = _ENVIRONMENT,
) -> Path:
    """The image of these layers, lowest first; made once."""
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    key = digest(name, *(layer.key for layer in layers))
    path = folder / f"{key}.tar"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            os.utime(path)
            return path
        files = [_layer_file(folder, layer) for layer in layers]
        unfinished = folder / "unfinished"
        with tarfile.open(unfinished, "w") as made:
            _add_image(made, name, files, entrypoint, user, environment)
        unfinished.rename(path)
        _forget_old(folder)
    return path


def _layer_file(folder: Path, layer: Layer) -> Path:
    path = folder / f"layer-{layer.name}-{layer.key}"
    if not path.exists():
        unfinished = folder / "unfinished-layer"
        with tarfile.open(unfinished, "w") as archive:
            layer.write(Tree(archive))
        unfinished.rename(path)
    os.utime(path)
    return path


def _add_image(
    archive: tarfile.TarFile,
    name: str,
    files: list[Path],
    entrypoint: list[str] | None,
    user: str,
    environment: Iterable[str],
) -> None:
    digests = []
    for file in files:
        with file.open("rb") as handle:
            digests.append(hashlib.file_digest(handle, "sha256").hexdigest())
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
        "os": "linux",
        "config": {
            "Entrypoint": entrypoint,
            "User": user,
            "Env": [*environment],
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        "history": [{"created": "1970-01-01T00:00:00Z"} for _ in digests],
    }
    text = json.dumps(config).encode()
    config_name = f"{hashlib.sha256(text).hexdigest()}.json"
    Tree(archive).text(config_name, text)
    for digest, file in zip(digests, files, strict=True):
        archive.add(file, f"{digest}/layer.tar", filter=_plain)
    layers = [f"{digest}/layer.tar" for digest in digests]
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": layers}]
    Tree(archive).text("manifest.json", json.dumps(manifest).encode())


def _forget_old(folder: Path) -> None:
    for pattern, count in _KEPT.items():
        files = sorted(folder.glob(pattern), key=lambda file: file.stat().st_mtime, reverse=True)
        for file in files[count:]:
            file.unlink()


class Tree:
    """A root file system on its way into a tar: root's alone, readable for all, no times."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._there: set[str] = set()

    def folder(self, path: str, mode: int = 0o755) -> None:
        path = path.strip("/")
        if path in self._there or not path:
            return
        self._there.add(path)
        entry = tarfile.TarInfo(path)
        entry.type, entry.mode = tarfile.DIRTYPE, mode
        self._archive.addfile(entry)

    def text(self, path: str, data: bytes, mode: int = 0o644) -> None:
        self._parents(path)
        entry = tarfile.TarInfo(path.strip("/"))
        entry.size, entry.mode = len(data), mode
        self._archive.addfile(entry, io.BytesIO(data))

    def link(self, path: str, target: str) -> None:
        self._parents(path)
        entry = tarfile.TarInfo(path.strip("/"))
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        self._archive.addfile(entry)

    def copy(self, source: Path, path: str, *, compiled: bool = True) -> None:
        """A file under another path; what links stand for, not links."""
        if path in self._there:
            return
        self._there.add(path)
        self._parents(path)
        self._archive.add(source.resolve(), path.strip("/"), filter=_plain)
        if compiled and path.endswith(".py"):
            self._add_bytecode(source, path)

    def unpack(self, source: Path) -> None:
        """All that another tar holds, as it is there."""
        with tarfile.open(source) as other:
            for entry in other:
                self._archive.addfile(entry, other.extractfile(entry) if entry.isreg() else None)

    def _add_bytecode(self, source: Path, path: str) -> None:
        """As an installation has it: no pod may write it, and compiling costs the most."""
        with tempfile.TemporaryDirectory() as folder:
            compiled = Path(folder) / "compiled"
            try:
                py_compile.compile(
                    str(source), str(compiled), path, doraise=True,
                    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                )  # fmt: skip
            except (py_compile.PyCompileError, ValueError):
                return  # a template that is no Python yet
            self.text(importlib.util.cache_from_source(path), compiled.read_bytes())

    def _parents(self, path: str) -> None:
        for parent in reversed(Path(path.strip("/")).parents[:-1]):
            self.folder(str(parent))


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.mode & 0o111 else 0o644
    return entry


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def recipe(*steps: Any) -> str:
    """Changes with the code that makes a layer, and only with that: layers cost a minute."""
    return "".join(inspect.getsource(step) for step in (Tree, _plain, *steps))


def _shell_layer() -> Layer:
    return Layer("shell", digest(recipe(_write_shell), *_APPLETS), _write_shell)


def _python_layer() -> Layer:
    of_python = (_write_python, files_below, _dependency_files, _libraries)
    return Layer("python", digest(recipe(*of_python), *_python_state()), _write_python)


# --- what is in them ------------------------------------------------------------------------------


def _write_bare(tree: Tree) -> None:
    tree.copy(_busybox(), "/only/busybox")


def _busybox() -> Path:
    found = shutil.which("busybox")
    if found is None:
        raise build.BuildError("busybox is missing: run `python -m tests.harness.kubelet` as root.")
    return Path(found)


def _write_shell(tree: Tree) -> None:
    tree.copy(_busybox(), "/bin/busybox")
    for applet in _APPLETS:
        tree.link(f"/bin/{applet}", "busybox")
    tree.link("/usr/bin/env", "/bin/busybox")
    if _AUTHORITIES.exists():
        tree.copy(_AUTHORITIES, str(_AUTHORITIES))
    tree.folder("/tmp", 0o1777)
    tree.folder("/var")
    tree.folder("/var/tmp", 0o1777)
    people = f"root:x:0:0::/root:/bin/sh\nwindlass:x:{USER}:{USER}::/tmp:/bin/sh\n"
    tree.text("/etc/passwd", people.encode())
    tree.text("/etc/group", f"root:x:0:\nwindlass:x:{USER}:\n".encode())


def _python_state() -> Iterator[str]:
    yield sys.version
    yield sys.base_prefix
    for distribution in _dependencies():
        yield f"{distribution.name} {distribution.version}"


def _package_state() -> Iterator[str]:
    for file in _package_files():
        yield str(file.relative_to(_REPOSITORY))
        yield hashlib.sha256(file.read_bytes()).hexdigest()


def _package_files() -> list[Path]:
    source = _REPOSITORY / "src" / "windlass"
    return sorted(
        file for file in source.rglob("*") if file.is_file() and "__pycache__" not in file.parts
    )


def _write_package(tree: Tree) -> None:
    for file in _package_files():
        tree.copy(file, f"{_site_packages()}/{file.relative_to(_REPOSITORY / 'src')}")
    script = f"#!{PYTHON}\nfrom windlass.cli.main import main\nmain()\n"
    tree.text("/usr/local/bin/windlass", script.encode(), 0o755)


def _write_python(tree: Tree) -> None:
    """The interpreter stays where it was built for; /usr/local/bin leads to it."""
    prefix = Path(sys.base_prefix)
    name = f"python{sysconfig.get_python_version()}"
    interpreter = prefix / "bin" / name
    tree.copy(interpreter, str(interpreter))
    for path in (PYTHON, "/usr/local/bin/python", "/usr/bin/python3", str(prefix / "bin/python3")):
        tree.link(path, str(interpreter))
    loaded = [interpreter]
    library = Path(sysconfig.get_path("stdlib"))
    library = prefix / library.relative_to(sys.base_prefix)
    for file in files_below(library):
        tree.copy(file, str(file))
        loaded.append(file)
    for source, path in _dependency_files():
        tree.copy(source, path)
        loaded.append(source)
    tree.link("/usr/local/bin/uv", f"{prefix}/bin/uv")
    for path in sorted(_libraries(loaded)):
        tree.copy(Path(path), path)


def files_below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - _NOT_IN_PODS)
        for file in sorted(files):
            if not file.endswith((".a", ".pyc")):
                yield Path(place) / file


def _site_packages() -> str:
    return f"{sys.base_prefix}/lib/python{sysconfig.get_python_version()}/site-packages"


def _dependencies() -> list[importlib.metadata.Distribution]:
    """All that the package needs to run, on nodes too, with what that needs, in order of names."""
    found: dict[str, importlib.metadata.Distribution] = {}
    todo = [importlib.metadata.distribution("windlass-platform")]
    while todo:
        for requirement in todo.pop().requires or ():
            name = re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower()
            wanted = "extra ==" not in requirement or _EXTRA.search(requirement)
            if name in found or not wanted:
                continue
            try:
                found[name] = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue  # for another system or another Python
            todo.append(found[name])
    return [found[name] for name in sorted(found)]


def _dependency_files() -> Iterator[tuple[Path, str]]:
    for distribution in _dependencies():
        for file in distribution.files or ():
            source = Path(str(file.locate()))
            if "__pycache__" in source.parts or not source.is_file():
                continue
            inside = "/".join(file.parts)
            if not inside.startswith(".."):
                yield source, f"{_site_packages()}/{inside}"
            elif source.name == "uv":
                yield source, f"{sys.base_prefix}/bin/uv"


def _libraries(files: Iterable[Path]) -> set[str]:
    """Shared libraries that the loader would take from the system, as it asks for them."""
    found: set[str] = set()
    programs = [str(f) for f in files if ".so" in f.name or os.access(f, os.X_OK)]
    for start in range(0, len(programs), 50):
        listed = subprocess.run(
            ["ldd", *programs[start : start + 50]], capture_output=True, text=True, check=False
        )
        for line in listed.stdout.splitlines():
            match = re.search(r"(?:=> )?(/\S+) \(0x", line)
            if match and ".venv" not in match[1]:
                found.add(match[1])
    for path in list(found):
        if Path(path).name == "libc.so.6":
            # What programs of other people's wheels expect beside it, as any image has it.
            beside = (Path(path).parent.glob(f"lib{name}.so.*") for name in _BESIDE_LIBC)
            found |= {str(file) for files in beside for file in files}
    return {path for path in found if not path.startswith(_site_packages())}
