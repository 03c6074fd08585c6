"""Builds a real Kubernetes control plane once, from source, into a cache outside the checkout.

`python -m tests.harness.build` and the pytest plug-in call `ensure`. Each binary is built under a
temporary name and renamed, so a run that was cut short continues where it stopped; a lock makes
two runs that start at once build only once. Nothing is downloaded but Go modules.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

TESTED = ("1.34.4", "1.35.4", "1.36.3")
"""The versions of Kubernetes that this recipe builds; the last one unless another is chosen."""
KUBERNETES = os.environ.get("WINDLASS_KUBERNETES") or TESTED[-1]
"""The version of this process."""
ETCD = "3.6.14"
KWOK = "0.8.0"
VERSITY = "1.8.0"
HELM = "3.22.0"

# What k8s.io/kubernetes keeps in its own tree and publishes apart. Its go.mod asks for v0.0.0 of
# each and replaces that by a folder; asking for the published version here outbids v0.0.0.
STAGING_MODULES = (
    "api", "apiextensions-apiserver", "apimachinery", "apiserver", "cli-runtime", "client-go",
    "cloud-provider", "cluster-bootstrap", "code-generator", "component-base",
    "component-helpers", "controller-manager", "cri-api", "cri-client", "cri-streaming",
    "csi-translation-lib", "dynamic-resource-allocation", "endpointslice", "externaljwt", "kms",
    "kube-aggregator", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl",
    "kubelet", "metrics", "mount-utils", "pod-security-admission", "sample-apiserver",
    "sample-controller", "streaming",
)  # fmt: skip

# Staging modules that older minor versions do not have.
_SINCE = {"cri-streaming": 36, "streaming": 36}

# Required by k8s.io/kubernetes, used by no command, and not published at this version.
UNPUBLISHED_MODULE = "k8s.io/sample-cli-plugin"


class BuildError(Exception):
    """The binaries are not there and cannot be built; the message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Module:
    """A wrapper module: all it does is to require what is built."""

    name: str
    requires: Mapping[str, str]
    empty_replacements: tuple[str, ...] = ()

    def go_mod(self) -> str:
        requires = "".join(f"\t{path} v{version}\n" for path, version in self.requires.items())
        replaces = "".join(
            f"\nreplace {path} => ./{self.stub(path)}\n" for path in self.empty_replacements
        )
        head = f"module {self.name}\n\ngo 1.26.0\n\ngodebug default=go1.26\n"
        return f"{head}\nrequire (\n{requires})\n{replaces}"

    @staticmethod
    def stub(path: str) -> str:
        return "empty-" + path.rsplit("/", 1)[-1]

    def write(self, directory: Path) -> None:
        """Writes the module's files; keeps what Go added to them if they are the same."""
        directory.mkdir(parents=True, exist_ok=True)
        recipe = directory / "recipe"
        if recipe.exists() and recipe.read_text() == self.go_mod():
            return
        (directory / "go.mod").write_text(self.go_mod())
        (directory / "go.sum").unlink(missing_ok=True)
        for path in self.empty_replacements:
            stub = directory / self.stub(path)
            stub.mkdir(exist_ok=True)
            (stub / "go.mod").write_text(f"module {path}\n")
        recipe.write_text(self.go_mod())


@dataclasses.dataclass(frozen=True)
class Binary:
    name: str
    module: Module
    package: str
    link_flags: str = "-s -w"


def _kubernetes_link_flags() -> str:
    """Without these /version says v0.0.0 and clients that check it misbehave."""
    major, minor, _ = KUBERNETES.split(".")
    values = {
        "gitVersion": f"v{KUBERNETES}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    package = "k8s.io/component-base/version"
    return "-s -w " + " ".join(f"-X {package}.{key}={value}" for key, value in values.items())


_STAGING_VERSION = "0." + KUBERNETES.split(".", 1)[1]
_KUBERNETES_MODULE = Module(
    "kubernetes",
    {"k8s.io/kubernetes": KUBERNETES}
    | {
        f"k8s.io/{module}": _STAGING_VERSION
        for module in STAGING_MODULES
        if _SINCE.get(module, 0) <= int(KUBERNETES.split(".")[1])
    },
    empty_replacements=(UNPUBLISHED_MODULE,),
)
_ETCD_MODULE = Module("etcd", {"go.etcd.io/etcd/server/v3": ETCD})
_KWOK_MODULE = Module("kwok", {"sigs.k8s.io/kwok": KWOK})

BINARIES = (
    Binary("etcd", _ETCD_MODULE, "go.etcd.io/etcd/server/v3"),
    *(
        Binary(name, _KUBERNETES_MODULE, f"k8s.io/kubernetes/cmd/{name}", _kubernetes_link_flags())
        for name in (
            "kube-apiserver", "kube-controller-manager", "kubectl", "kube-scheduler", "kubelet",
        )
    ),
    Binary("kwok", _KWOK_MODULE, "sigs.k8s.io/kwok/cmd/kwok"),
)  # fmt: skip
OBJECT_STORE = Binary(
    "versitygw",
    Module("versitygw", {"github.com/versity/versitygw": VERSITY}),
    "github.com/versity/versitygw/cmd/versitygw",
)
"""S3-compatible storage, apart from the rest: where it cannot be built its tests are skipped."""

HELM_CLIENT = Binary(
    "helm", Module("helm", {"helm.sh/helm/v3": HELM}), "helm.sh/helm/v3/cmd/helm"
)  # fmt: skip
"""Renders the chart; apart from the rest, because one test needs it."""


def cache_dir() -> Path:
    """Where binaries of this version are kept; WINDLASS_CACHE moves it."""
    base = os.environ.get("WINDLASS_CACHE")
    if not base:
        base = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "windlass")
    return Path(base).expanduser() / "kubernetes" / f"v{KUBERNETES}"


def binary(name: str) -> Path:
    """The path of a built binary; BuildError if it is not built."""
    path = cache_dir() / "bin" / name
    if not path.exists():
        raise BuildError(f"{name} is not built: run `python -m tests.harness.build`.")
    return path


def missing(listed: Sequence[Binary] | None = None) -> list[Binary]:
    return [
        wanted
        for wanted in (BINARIES if listed is None else listed)
        if not (cache_dir() / "bin" / wanted.name).exists()
    ]


def ensure(say: Callable[[str], None] = print, listed: Sequence[Binary] | None = None) -> Path:
    """Builds what is missing and returns the folder of binaries; BuildError if it cannot."""
    cache = cache_dir()
    if missing(listed):
        if shutil.which("go") is None:
            raise BuildError(
                f"The Kubernetes control plane is not built in {cache} and Go is not installed:"
                " install Go 1.26 or newer, then run `python -m tests.harness.build`."
            )
        with _lock(cache, say):
            todo = missing(listed)  # another run may have built some while we waited
            for number, wanted in enumerate(todo, start=1):
                _build(wanted, cache, _numbered(say, f"[{number}/{len(todo)}]"))
    return cache / "bin"


@contextlib.contextmanager
def _lock(cache: Path, say: Callable[[str], None]) -> Iterator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            say(f"process {handle.read().strip() or '?'} is building in {cache}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def _numbered(say: Callable[[str], None], prefix: str) -> Callable[[str], None]:
    return lambda text: say(f"{prefix} {text}")


def _build(wanted: Binary, cache: Path, say: Callable[[str], None]) -> None:
    source = cache / "source" / wanted.module.name
    wanted.module.write(source)
    binaries = cache / "bin"
    binaries.mkdir(exist_ok=True)
    unfinished = binaries / f".{wanted.name}.unfinished"
    command = ["go", "build", "-trimpath", "-ldflags", wanted.link_flags]
    command += ["-o", str(unfinished), wanted.package]
    settings = {"GOFLAGS": "-mod=mod", "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    log = cache / f"build-{wanted.name}.log"
    say(f"building {wanted.name} (log: {log})")
    begin = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=source, env=os.environ | settings, stdout=output, stderr=output
        )
        try:
            while _still_running(process, seconds=10):
                say(f"{wanted.name}: {time.monotonic() - begin:.0f} s, {_last_line(log)}")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise BuildError(f"Building {wanted.name} failed; {log} ends with:\n{tail}")
    unfinished.rename(binaries / wanted.name)
    say(f"{wanted.name} built in {time.monotonic() - begin:.0f} s")


def _still_running(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return lines[-1][:100] if lines else "compiling"


def main() -> int:
    try:
        ensure(lambda text: print(text, flush=True))
    except BuildError as error:
        print(error, file=sys.stderr)
        without_go = shutil.which("go") is None
        return 0 if without_go and os.environ.get("CI") != "true" else 1
    print(f"Kubernetes v{KUBERNETES}, etcd v{ETCD} and KWOK v{KWOK} are in {cache_dir() / 'bin'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
