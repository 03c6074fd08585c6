"""Python environments of a team: built once per content, with uv, used by all its runs.

    KEEP/<key>/            an environment; there only when it is whole; its time is its last use
    KEEP/<key>.lock        who builds it holds this
    KEEP/<key>.<pid>.new/  what is being built, or was when its builder was killed

A key stands for requirements, files they name, Python and platform. Environments are relocatable:
each pod may see the folder at another path. Standard library only; runs inside pods.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_FORMAT = 1
"""Part of every key: raise it when environments are built differently."""
_FILE = re.compile(r"(?:-r|-c|--requirements?|--constraints?)[ =]*(\S.*)")
_LOCAL = re.compile(r"(-e|--editable)\b|[./~]|file:|.*@ *file:")
_TRANSLATED = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_CERT": "SSL_CERT_FILE",
}
"""What a machine tells pip holds for uv, too, unless it tells uv otherwise."""
_SHOWN = 4000


class BuildError(Exception):
    """What the tool printed."""


def ensure(
    keep: Path, requirements: Sequence[str], python: str, code: Path | None, code_digest: str,
    image: str = "",
) -> Path:  # fmt: skip
    """The environment's folder, built if it is not there yet. Others who want the same wait.
    `image`: whose Python and libraries it is for, if that is not the platform's own."""
    keep.mkdir(parents=True, exist_ok=True)
    interpreter = python or _usual_python()
    place = keep / key(requirements, interpreter, code, code_digest, image)
    if not _use(place):
        with _held(place.with_name(place.name + ".lock")):
            if not _use(place):
                _build(place, requirements, interpreter, code)
    return place


def key(
    requirements: Sequence[str], interpreter: str, code: Path | None, code_digest: str,
    image: str = "",
) -> str:  # fmt: skip
    """The same for the same content."""
    lines = [line.strip() for line in requirements if line.strip() and line.strip()[0] != "#"]
    named = [_content(line, code) for line in lines]
    # A package that lies in the code itself is another one with each change of it.
    own = code_digest if any(_LOCAL.match(line) for line in lines) else ""
    machine = (platform.system(), platform.machine(), *platform.libc_ver())
    facts = [_FORMAT, lines, named, own, _version(interpreter), machine]
    facts += [image] if image else []
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def _content(line: str, code: Path | None) -> str:
    """What a file says that requirements refer to."""
    found = _FILE.fullmatch(line)
    if found is None:
        return ""
    path = (code or Path()) / found[1].strip("\"'")
    try:
        return path.read_text(errors="replace")
    except OSError as problem:
        raise BuildError(
            f"requirements name {found[1]}: {problem.strerror}; is it in the working folder?"
        ) from problem


def _usual_python() -> str:
    """The one that `python` means to the run, so that with and without packages it is the same."""
    for name in ("python3", "python"):
        found = shutil.which(name)
        if found:
            return found
    return sys.executable


def _version(interpreter: str) -> str:
    """Two paths to the same interpreter are the same; a bare version is what it is."""
    if "/" not in interpreter:
        return interpreter
    ask = "import sys; print(sys.version, sys.base_prefix)"
    try:
        answer = subprocess.run(
            [interpreter, "-I", "-c", ask], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as problem:
        raise BuildError(f"{interpreter} does not run: {problem}") from problem
    return answer.stdout.strip()


def _build(place: Path, requirements: Sequence[str], python: str, code: Path | None) -> None:
    for left in place.parent.glob(f"{place.name}.*.new"):
        # Its builder was killed: we hold the lock, so nobody builds there now.
        shutil.rmtree(left, ignore_errors=True)
    fresh = place.with_name(f"{place.name}.{os.getpid()}.new")
    try:
        keep = place.parent
        words = ("--relocatable", "--quiet", "--python", python, str(fresh))
        _uv(keep, "venv", *words, folder=code)
        if any(line.strip() for line in requirements):
            listed = fresh / "windlass-requirements.txt"
            listed.write_text("\n".join(_anchored(line, code) for line in requirements) + "\n")
            into = str(fresh / "bin/python")
            _uv(
                keep, "pip", "install", "--python", into, "--requirements", str(listed), folder=code
            )
        fresh.rename(place)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _anchored(line: str, code: Path | None) -> str:
    """uv reads files that a list names beside that list; ours lies elsewhere."""
    found = _FILE.fullmatch(line.strip())
    if found is None or code is None:
        return line
    path = found[1].strip("\"'")
    flag = "-c" if line.strip().startswith(("-c", "--c")) else "-r"
    return f"{flag} {code / path}"


def _uv(keep: Path, *words: str, folder: Path | None) -> None:
    """Shows what it says as it says it; the end of it is the error if it fails."""
    environment = tool_environment(os.environ, keep)
    try:
        process = subprocess.Popen(
            [find_uv(), *words],
            cwd=folder or None,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as problem:
        raise BuildError(f"uv does not run in this image, which must have glibc: {problem}") from (
            problem
        )
    said: list[str] = []
    assert process.stdout is not None  # noqa: S101 - it was asked for
    for line in process.stdout:
        print(line, end="", flush=True)  # noqa: T201 - the log of the pod
        said.append(line)
    if process.wait() != 0:
        told = [line for line in said if not line.startswith("Using Python ")]
        raise BuildError("".join(told).strip()[-_SHOWN:] or f"uv {words[0]} failed")


def tool_environment(given: Mapping[str, str], keep: Path) -> dict[str, str]:
    """The machine's settings for uv. Its cache is the user's own where there is one, else it lies
    with the team's environments."""
    found = dict(given)
    for theirs, ours in _TRANSLATED.items():
        if given.get(theirs) and ours not in given:
            found[ours] = given[theirs]
    if "UV_CACHE_DIR" not in found:
        home = Path(given.get("HOME") or "/nonexistent") / ".cache" / "uv"
        usable = os.access(home, os.W_OK)
        found["UV_CACHE_DIR"] = str(home if usable else keep / ".uv-cache")
    # Mirrors inside a company are signed by its own authority, which the machine knows.
    found.setdefault("UV_SYSTEM_CERTS", "1")
    found.pop("VIRTUAL_ENV", None)
    found["UV_NO_PROGRESS"] = "1"
    return found


def find_uv() -> str:
    """The one that came with us; where it was copied to, that."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("uv")
    if not found:
        raise BuildError("uv is not installed beside Windlass; install it with: pip install uv")
    return found


def _use(place: Path) -> bool:
    """Whether it is there; marked as used, because what is not for a month is swept away."""
    try:
        os.utime(place)
    except FileNotFoundError:
        return False
    except OSError:
        return place.is_dir()
    return True


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another run builds the same environment; waiting for it", flush=True)  # noqa: T201
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
