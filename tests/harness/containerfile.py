"""deploy/Containerfile built for real, by buildah, without a registry.

The base that it asks for is made here under the same name, as the official image is: Debian's
packages, and a Python below /usr/local, which is this machine's. The base also holds what this
machine knows of package indexes and authorities, so that the file itself is built as it stands.
It is kept in the cache; `python -m tests.harness.containerfile` makes it, so that no test's timeout
counts that. Needs root, and Debian's buildah and mmdebstrap.
"""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.harness import images, packages
from tests.harness.processes import Stoppable, remove_at_exit

FILE = Path(__file__).resolve().parents[2] / "deploy" / "Containerfile"
PACKAGES = ("buildah", "mmdebstrap")
_FROM = re.compile(r"^FROM (?P<base>\S*/python:(?P<version>3\.\d+)\S*)", re.MULTILINE)
_OF_DEBIAN = (
    "ca-certificates", "netbase", "tzdata", "libbz2-1.0", "libexpat1", "libffi8", "liblzma5",
    "libncursesw6", "libreadline8", "libsqlite3-0", "libssl3", "libuuid1", "zlib1g",
)  # fmt: skip
"""What the official image adds to the smallest Debian, and the libraries that its Python loads."""
_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_ENVIRONMENT = (
    "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8",
)  # fmt: skip
_SUITE = "bookworm"
_PIP = "#!/usr/local/bin/python3\nimport sys\nfrom pip._internal.cli.main import main\n"


class CannotBuildError(Exception):
    """Why it cannot be built here, with the remedy."""


def ensure(say: Any = print) -> None:
    """Installs what is missing and makes the base."""
    if os.geteuid() != 0:
        raise CannotBuildError("Building images needs root: run the tests as root.")
    _, version = _base_wanted()
    library = sysconfig.get_path("purelib", vars={"base": sys.base_prefix})
    if sysconfig.get_python_version() != version or "site-packages" not in library:
        raise CannotBuildError(
            f"The base of deploy/Containerfile is made from this machine's Python: run the tests "
            f"with Python {version}, not Debian's own."
        )
    if any(shutil.which(name) is None for name in PACKAGES):
        say(f"installing {', '.join(PACKAGES)}")
        problem = packages.install(*PACKAGES)
        if problem:
            raise CannotBuildError(problem)
    base()


def base() -> Path:
    """An archive of an image as the first line of the file names it."""
    name, version = _base_wanted()
    sources = _sources()
    debian = images.digest(images.recipe(_write_debian), *_OF_DEBIAN, *sources)
    own = images.digest(images.recipe(_write_python, _pip_settings), sys.version, *_settings())
    assert sysconfig.get_python_version() == version, "the caller looked: ensure"
    layers = [
        images.Layer("debian", debian, _write_debian),
        images.Layer("base", own, _write_python),
    ]
    return images.archive(name, layers, environment=_ENVIRONMENT)


class Image(Stoppable):
    """What the file makes, with a container of it in which commands can be run."""

    NAME = "windlass.dev/windlass:built"

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="windlass-image-"))
        remove_at_exit(self.folder)
        self._container = ""

    @classmethod
    def build(cls) -> Image:
        ensure()
        made = cls()
        try:
            made._do("pull", f"docker-archive:{base()}")
            made._do(
                "bud", "--isolation", "chroot", "--network", "host", "--pull-never",
                "--file", str(FILE), "--tag", cls.NAME, str(FILE.parents[1]),
            )  # fmt: skip
            made._container = made._do("from", "--pull-never", cls.NAME).strip()
        except BaseException:
            made.stop()
            raise
        return made

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """In its file system, as the user that the image names."""
        words = ("run", "--isolation", "chroot", "--network", "host", self._container, "--")
        return self._buildah(*words, *command)

    def archive(self) -> Path:
        """For containerd, under its name."""
        path = self.folder / "image.tar"
        if not path.exists():
            self._do("push", self.NAME, f"docker-archive:{path}:{self.NAME}")
        return path

    def stop(self) -> None:
        self._buildah("rm", "--all")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _do(self, *words: str) -> str:
        done = self._buildah(*words)
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
            raise AssertionError(f"buildah {words[0]} failed:\n{tail}")
        return done.stdout

    def _buildah(self, *words: str) -> subprocess.CompletedProcess[str]:
        store = [f"--root={self.folder}/store", f"--runroot={self.folder}/run"]
        return subprocess.run(
            ["buildah", *store, "--storage-driver=overlay", *words],
            capture_output=True, text=True, check=False,
        )  # fmt: skip


# --- the base -------------------------------------------------------------------------------------


def _base_wanted() -> tuple[str, str]:
    """Its name, and the version of Python in it."""
    found = {(each["base"], each["version"]) for each in _FROM.finditer(FILE.read_text())}
    if len(found) != 1:
        raise CannotBuildError(f"{FILE.name} must name one base of Python, and names {found}.")
    return found.pop()


def _sources() -> list[str]:
    """Where this machine gets Debian's packages from."""
    etc = Path("/etc/apt")
    files = [*etc.glob("sources.list"), *sorted(etc.glob("sources.list.d/debian.*"))]
    return [file.read_text() for file in files]


def _write_debian(tree: images.Tree) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "debian.tar"
        fetching = subprocess.run(
            ["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=True
        )
        done = subprocess.run(
            [
                "mmdebstrap", "--mode=root", "--variant=minbase",
                f"--include={','.join(_OF_DEBIAN)}",
                *(f"--aptopt={line}" for line in fetching.stdout.splitlines() if "::" in line),
                _SUITE, str(made),
            ],
            input="\n".join(_sources()), capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise CannotBuildError(f"mmdebstrap failed:\n{done.stderr[-2000:]}")
        tree.unpack(made)


def _write_python(tree: images.Tree) -> None:
    """As the official image has it: below /usr/local, with pip, without bytecode."""
    prefix, version = Path(sys.base_prefix), f"python{sysconfig.get_python_version()}"
    tree.copy(prefix / "bin" / version, f"/usr/local/bin/{version}")
    for name, target in (("python3", version), ("python", "python3")):
        tree.link(f"/usr/local/bin/{name}", target)
    for library in prefix.glob("lib/libpython3*.so*"):
        tree.copy(library, f"/usr/lib/{library.name}")
    for file in images.files_below(prefix / "lib" / version):
        path = f"/usr/local/lib/{version}/{file.relative_to(prefix / 'lib' / version)}"
        tree.copy(file, path, compiled=False)
    for each in importlib.metadata.distribution("pip").files or ():
        if ".." not in each.parts and each.suffix != ".pyc":
            path = f"/usr/local/lib/{version}/site-packages/{each}"
            tree.copy(Path(str(each.locate())), path, compiled=False)
    tree.text("/usr/local/bin/pip", f"{_PIP}sys.exit(main())\n".encode(), 0o755)
    tree.text("/etc/pip.conf", _pip_settings().encode())
    if _AUTHORITIES.exists():
        tree.copy(_AUTHORITIES, str(_AUTHORITIES))


def _settings() -> Iterator[str]:
    yield _pip_settings()
    yield _AUTHORITIES.read_text() if _AUTHORITIES.exists() else ""


def _pip_settings() -> str:
    """The configuration of this machine's pip, by files and variables, but for folders of the
    machine."""
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    found: dict[str, str] = {}
    for line in told.stdout.splitlines():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if name not in ("find-links", "cache-dir", "require-virtualenv"):
            found[name] = str(ast.literal_eval(value))
    lines = [f"{name} = {value}" for name, value in sorted(found.items())]
    return "\n".join(["[global]", *lines, ""])


def main() -> int:
    try:
        ensure(lambda text: print(text, flush=True))
    except CannotBuildError as problem:
        print(problem, file=sys.stderr)
        return 1 if os.environ.get("CI") == "true" else 0
    print(f"buildah is there; the base of {FILE.name} is in {images.cache_dir()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
