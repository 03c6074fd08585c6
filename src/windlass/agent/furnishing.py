"""The environment of a member, made in the image that its command runs in: packages, then `setup`.

Called by `agent.prepare` where that image is the platform's own. Into another image `prepare` can
only copy: it leaves this module, `agent.environments` and uv in the pod's folder, and an init
container in that image runs them with the image's own Python, 3.8 or newer.

    run/environment.packages   a script that a shell reads before the command

Standard library only, and nothing of the package but `agent.environments`.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from windlass.agent import environments

PACKAGES = "run/environment.packages"
FAILED = "ImageOrEnvironmentFailed"
_COPIED = ("environments", "furnishing")
_MOST_MESSAGE = 4000


class SetupError(Exception):
    """The user's script failed."""


def main() -> int:
    """In an image of the user's."""
    root = Path(os.environ.get("WINDLASS_ROOT", "/windlass"))
    try:
        order = json.loads(os.environ["WINDLASS_PREPARE"])
        furnish(root, order, root / "code" if order["code"] else None)
    except (environments.BuildError, SetupError, OSError) as problem:
        leave_words(FAILED, str(problem))
        return 1
    return 0


def furnish(root: Path, order: dict[str, Any], code: Path | None) -> None:
    script = root / PACKAGES
    lines = [""]
    if order["requirements"] or order["python"]:
        place = environments.ensure(
            root / "environments", order["requirements"], order["python"], code, order["code"],
            order.get("image", ""),
        )  # fmt: skip
        lines = [
            f"export VIRTUAL_ENV={shlex.quote(str(place))}",
            'export PATH="$VIRTUAL_ENV/bin:$PATH"',
            "unset PYTHONHOME",
            "",
        ]
    script.write_text("\n".join(lines))
    if order["setup"]:
        _run_setup(order["setup"], root, code or root)


def copy_into(root: Path, library: str) -> None:
    """What another image needs to do this by itself."""
    folder = root / library / "windlass" / "agent"
    folder.mkdir(parents=True, exist_ok=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").write_text("")
    for name in _COPIED:
        shutil.copy(Path(__file__).with_name(f"{name}.py"), folder)
    shutil.copy(environments.find_uv(), root / "run" / "bin" / "uv")


def leave_words(reason: str, message: str) -> None:
    """Why the run cannot start, where the node looks for it."""
    print(f"windlass: {message}", file=sys.stderr, flush=True)  # noqa: T201 - the log of the pod
    told = os.environ.get("WINDLASS_TERMINATION_LOG", "/dev/termination-log")
    try:
        Path(told).write_text(json.dumps({"reason": reason, "message": message[-_MOST_MESSAGE:]}))
    except OSError as problem:
        print(f"windlass: {told}: {problem}", file=sys.stderr)  # noqa: T201


def _run_setup(script: str, root: Path, folder: Path) -> None:
    print("running setup", flush=True)  # noqa: T201 - the log of the pod
    own = root / "run" / "bin" / "sh"
    shell = str(own) if not os.access("/bin/sh", os.X_OK) else "/bin/sh"
    words = [shell, "-c", f'. "$0"; set -e\n{script}', str(root / PACKAGES)]
    done = subprocess.run(words, cwd=folder, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SetupError(
            f"spec.environment.setup ended with exit code {done.returncode}; what it printed is in "
            "the log of the pod's init containers"
        )
