"""Builds the environment of a pod in the image of its command: packages, then the `setup` script.

`agent.init.main` calls this if that image is the platform's own. For another image it copies this
module, `agent.init.python_environments` and uv into the pod's folder, and an init container in that
image runs them with the image's Python, 3.8 or newer.

    run/environment.packages   a script that a shell sources before the command

Standard library only, and nothing of the package but `agent.init.python_environments`.
"""

from __future__ import annotations

import collections
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

from windlass.agent.init import python_environments

PACKAGES = "run/environment.packages"
FAILED = "ImageOrEnvironmentFailed"
_COPIED = ("python_environments", "image_environment")
_MAX_MESSAGE = 4000
_LAST_LINES = 20
"""Of the output of `setup`, for the message of a failure."""
_REST_SECONDS = 2.0


class SetupError(Exception):
    """The user's script failed."""


def main() -> int:
    """The init container in an image of the user."""
    root = Path(os.environ.get("WINDLASS_ROOT", "/windlass"))
    try:
        config = json.loads(os.environ["WINDLASS_PREPARE"])
        build(root, config, root / "code" if config["code"] else None)
    except (python_environments.BuildError, SetupError, OSError) as problem:
        write_termination_message(FAILED, str(problem))
        return 1
    return 0


def build(root: Path, config: dict[str, Any], code: Path | None) -> None:
    """Builds the Python environment, writes the script with its paths and runs `setup`."""
    script = root / PACKAGES
    lines = [""]
    if config["requirements"] or config["python"]:
        folder = python_environments.ensure(
            root / "environments", config["requirements"], config["python"], code, config["code"],
            config.get("image", ""),
        )  # fmt: skip
        lines = [
            f"export VIRTUAL_ENV={shlex.quote(str(folder))}",
            'export PATH="$VIRTUAL_ENV/bin:$PATH"',
            "unset PYTHONHOME",
            "",
        ]
    script.write_text("\n".join(lines))
    if config["setup"]:
        _run_setup(config["setup"], root, code or root)


def copy_into(root: Path, library: str) -> None:
    """Copies what the init container in another image needs."""
    folder = root / library / "windlass" / "agent" / "init"
    folder.mkdir(parents=True, exist_ok=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").write_text("")
    for name in _COPIED:
        shutil.copy(Path(__file__).with_name(f"{name}.py"), folder)
    shutil.copy(python_environments.find_uv(), root / "run" / "bin" / "uv")


def write_termination_message(reason: str, message: str) -> None:
    """Writes reason and message to the termination log, which the node agent or kubelet reads."""
    print(f"windlass: {message}", file=sys.stderr, flush=True)  # noqa: T201 - the log of the pod
    path = os.environ.get("WINDLASS_TERMINATION_LOG", "/dev/termination-log")
    try:
        Path(path).write_text(json.dumps({"reason": reason, "message": message[-_MAX_MESSAGE:]}))
    except OSError as problem:
        print(f"windlass: {path}: {problem}", file=sys.stderr)  # noqa: T201


def _run_setup(script: str, root: Path, folder: Path) -> None:
    print("running setup", flush=True)  # noqa: T201 - the log of the pod
    own = root / "run" / "bin" / "sh"
    shell = str(own) if not os.access("/bin/sh", os.X_OK) else "/bin/sh"
    argv = [shell, "-c", f'. "$0"; set -e\n{script}', str(root / PACKAGES)]
    process = subprocess.Popen(
        argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    last: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
    reader = threading.Thread(target=_pass_on, args=(process.stdout, last), daemon=True)
    reader.start()
    code = process.wait()
    # A process that the script left behind may keep the pipe open.
    reader.join(_REST_SECONDS)
    if code:
        output = "".join(last).strip() or "it printed nothing"
        raise SetupError(f"setup ended with exit code {code}: {output}")


def _pass_on(output: IO[str], last: collections.deque[str]) -> None:
    """Prints what the script prints, and keeps its last lines for the message of a failure."""
    for line in output:
        print(line, end="", flush=True)  # noqa: T201 - the log of the pod
        last.append(line)
