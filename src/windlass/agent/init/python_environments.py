"""Python environments of a team: built with uv, once per content, and used by all of its runs.

    KEEP/<key>/            a complete environment; its modification time is its last use
    KEEP/<key>.lock        locked by the process that builds it
    KEEP/<key>.<pid>.new/  an environment that is being built, or whose builder was killed

A key is the hash of requirements, the files they name, Python and platform. Environments are
relocatable: the folder may have another path in each pod. Standard library only; runs inside pods.
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
"""Part of every key: increment it when environments are built differently."""
_FILE = re.compile(r"(?:-r|-c|--requirements?|--constraints?)[ =]*(\S.*)")
_LOCAL = re.compile(r"(-e|--editable)\b|[./~]|file:|.*@ *file:")
_TRANSLATED = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_CERT": "SSL_CERT_FILE",
}
"""Settings of pip that apply to uv, unless uv's own are set."""
_SHOWN = 4000


class BuildError(Exception):
    """uv failed; the message is its output."""


def ensure(
    keep: Path, requirements: Sequence[str], python: str, code: Path | None, code_digest: str,
    image: str = "",
) -> Path:  # fmt: skip
    """The folder of the environment, which is built if it does not exist; concurrent builds of the
    same environment wait. `image`: the image whose Python and libraries it is for, if not the
    platform's own."""
    keep.mkdir(parents=True, exist_ok=True)
    interpreter = python or _default_python()
    target = keep / key(requirements, interpreter, code, code_digest, image)
    if not _use(target):
        with _locked(target.with_name(target.name + ".lock")):
            if not _use(target):
                _build(target, requirements, interpreter, code)
    return target


def key(
    requirements: Sequence[str], interpreter: str, code: Path | None, code_digest: str,
    image: str = "",
) -> str:  # fmt: skip
    """The key of an environment: the same for the same content."""
    lines = [line.strip() for line in requirements if line.strip() and line.strip()[0] != "#"]
    named = [_content(line, code) for line in lines]
    # A package in the code itself changes with the code.
    own = code_digest if any(_LOCAL.match(line) for line in lines) else ""
    machine = (platform.system(), platform.machine(), *platform.libc_ver())
    facts = [_FORMAT, lines, named, own, _version(interpreter), machine]
    facts += [image] if image else []
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def _content(line: str, code: Path | None) -> str:
    """The content of the file that a line of requirements names; "" if it names none."""
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


def _default_python() -> str:
    """The interpreter of the PATH, so that runs with and without packages use the same."""
    for name in ("python3", "python"):
        found = shutil.which(name)
        if found:
            return found
    return sys.executable


def _version(interpreter: str) -> str:
    """The version and prefix of an interpreter, which are the same for all paths to it; a version
    number is returned as it is."""
    if "/" not in interpreter:
        return interpreter
    program = "import sys; print(sys.version, sys.base_prefix)"
    try:
        answer = subprocess.run(
            [interpreter, "-I", "-c", program], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as problem:
        raise BuildError(f"{interpreter} does not run: {problem}") from problem
    return answer.stdout.strip()


def _build(target: Path, requirements: Sequence[str], python: str, code: Path | None) -> None:
    for left in target.parent.glob(f"{target.name}.*.new"):
        # Its builder was killed: this process has the lock, so no other build is running.
        shutil.rmtree(left, ignore_errors=True)
    fresh = target.with_name(f"{target.name}.{os.getpid()}.new")
    try:
        keep = target.parent
        options = ("--relocatable", "--quiet", "--python", python, str(fresh))
        _uv(keep, "venv", *options, folder=code)
        if any(line.strip() for line in requirements):
            listed = fresh / "windlass-requirements.txt"
            listed.write_text("\n".join(_anchored(line, code) for line in requirements) + "\n")
            into = str(fresh / "bin/python")
            _uv(
                keep, "pip", "install", "--python", into, "--requirements", str(listed), folder=code
            )
        fresh.rename(target)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _anchored(line: str, code: Path | None) -> str:
    """The line with an absolute path: uv resolves paths against the folder of the requirements
    file, which is not the folder of the code."""
    found = _FILE.fullmatch(line.strip())
    if found is None or code is None:
        return line
    path = found[1].strip("\"'")
    flag = "-c" if line.strip().startswith(("-c", "--c")) else "-r"
    return f"{flag} {code / path}"


def _uv(keep: Path, *arguments: str, folder: Path | None) -> None:
    """Runs uv and prints its output as it arrives. Raises BuildError with the end of the output if
    it fails."""
    environment = tool_environment(os.environ, keep)
    try:
        process = subprocess.Popen(
            [find_uv(), *arguments],
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
    output: list[str] = []
    assert process.stdout is not None  # noqa: S101 - because of stdout=PIPE
    for line in process.stdout:
        print(line, end="", flush=True)  # noqa: T201 - the log of the pod
        output.append(line)
    if process.wait() != 0:
        shown = [line for line in output if not line.startswith("Using Python ")]
        raise BuildError("".join(shown).strip()[-_SHOWN:] or f"uv {arguments[0]} failed")


def tool_environment(given: Mapping[str, str], keep: Path) -> dict[str, str]:
    """The environment variables of uv: the machine's settings. The cache is the user's if there is
    one, else it is in the folder of the team's environments."""
    found = dict(given)
    for theirs, ours in _TRANSLATED.items():
        if given.get(theirs) and ours not in given:
            found[ours] = given[theirs]
    if "UV_CACHE_DIR" not in found:
        home = Path(given.get("HOME") or "/nonexistent") / ".cache" / "uv"
        usable = os.access(home, os.W_OK)
        found["UV_CACHE_DIR"] = str(home if usable else keep / ".uv-cache")
    # The certificate of a company's mirror is signed by an authority that the machine trusts.
    found.setdefault("UV_SYSTEM_CERTS", "1")
    found.pop("VIRTUAL_ENV", None)
    found["UV_NO_PROGRESS"] = "1"
    return found


def find_uv() -> str:
    """The path of uv: beside this Python, else in the PATH, where the init container copied it."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("uv")
    if not found:
        raise BuildError("uv is not installed beside Windlass; install it with: pip install uv")
    return found


def _use(folder: Path) -> bool:
    """Whether the environment exists. Marks it as used: the agent removes unused ones after a
    month."""
    try:
        os.utime(folder)
    except FileNotFoundError:
        return False
    except OSError:
        return folder.is_dir()
    return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another run builds the same environment; waiting for it", flush=True)  # noqa: T201
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
