"""Inside a pod, before its command: fetch the code, build the environment, find the other members.

`PYTHON -I -m windlass.agent.prepare`, as the init container that `control.podrender` writes. What
to do is in WINDLASS_PREPARE. When something fails, reason and message go to the pod's termination
log. Standard library only: it starts quickly.

    run/environment      a script that a shell reads before the command
    run/bin/sh ...       that shell, where the command may run in an image that has none
    run/companion.py     for frameworks that start things on other members
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from windlass import frameworks
from windlass.agent import asking, environments
from windlass.frameworks import companion, group
from windlass.frameworks import order as orders

_MOST_MESSAGE = 4000
FAILED = "ImageOrEnvironmentFailed"
_LATE = "Timeout"
_TOOLS = ("sh", "kill", "sleep")


class PrepareError(Exception):
    """Why the run cannot start, for people."""


def main() -> int:
    root = Path(os.environ.get("WINDLASS_ROOT", "/windlass"))
    try:
        prepare(root, json.loads(os.environ["WINDLASS_PREPARE"]))
    except asking.LateError as problem:
        _fail(_LATE, f"{problem}; look at what keeps them with: windlass why RUN")
        return 1
    except (PrepareError, asking.RefusedError, environments.BuildError, OSError) as problem:
        _fail(FAILED, str(problem))
        return 1
    return 0


def prepare(root: Path, order: dict[str, Any]) -> None:
    (root / "run").mkdir(exist_ok=True)
    if order.get("tools"):
        _copy_tools(root / "run")
    code = None
    if order["code"]:
        code = root / "code"
        _fetch_code(code, order["code"], root)
    variables: dict[str, str] = {}
    if order["requirements"] or order["python"]:
        place = environments.ensure(
            root / "environments", order["requirements"], order["python"], code, order["code"]
        )
        variables = {"VIRTUAL_ENV": str(place)}
    entry = root / "run" / "environment"
    _write_entry(entry, variables)
    if order["setup"]:
        _run_setup(order["setup"], entry, code or root)
    if order.get("group"):
        # Last: all that takes time is done by then, and the others are there.
        rendered = _find_others(root, order["group"], order["patience"])
        _write_entry(entry, variables, rendered.variables, rendered.command)


def _write_entry(
    path: Path,
    variables: dict[str, str],
    found: Any = None,
    command: Sequence[str] = (),
) -> None:
    """A script that a shell reads before the command. It notes which process becomes the command:
    whoever wants to send it a signal of the run's own looks there."""
    told = {**(found or {}), **variables}
    lines = [f"echo $$ > {shlex.quote(f'{path}.pid')}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in told.items()]
    if variables:
        lines.append('export PATH="$VIRTUAL_ENV/bin:$PATH"')
        lines.append("unset PYTHONHOME")
    if command:
        lines.append(f"set -- {shlex.join(command)}")
    fresh = path.with_name(path.name + ".new")
    fresh.write_text("\n".join([*lines, ""]))
    fresh.replace(path)


def _find_others(root: Path, order: dict[str, Any], seconds: float) -> group.Rendered:
    server = asking.Server.from_environment(root)
    sizes = orders.sizes(order)
    print("waiting for", sum(sizes.values()), "members", flush=True)  # noqa: T201 - the pod's log
    book = server.addresses(order["run"], order["attempt"], sizes, seconds)
    found, me = orders.read(order, book, str(root), str(root / "run" / "companion.py"))
    rendered = frameworks.render(order["framework"], found, me)
    companion.write_files(root / "run", dict(rendered.files))
    return rendered


def _copy_tools(folder: Path) -> None:
    """A static shell, and the companion: the command's image may have neither."""
    shutil.copy(companion.__file__, folder / "companion.py")
    shell = shutil.which("busybox")
    if shell is None:
        raise PrepareError(
            "the platform's image has no busybox; build it from deploy/Containerfile"
        )
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    shutil.copy(shell, tools / "busybox")
    for name in _TOOLS:
        (tools / name).unlink(missing_ok=True)
        (tools / name).symlink_to("busybox")


def _run_setup(script: str, entry: Path, folder: Path) -> None:
    print("running setup", flush=True)  # noqa: T201 - the log of the pod
    words = ["/bin/sh", "-c", f'. "$0"; set -e\n{script}', str(entry)]
    done = subprocess.run(words, cwd=folder, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise PrepareError(
            f"spec.environment.setup ended with exit code {done.returncode}; what it printed is in "
            "the log of the container prepare"
        )


# --- the code


def _fetch_code(folder: Path, digest: str, root: Path) -> None:
    archive = root / "run" / "code.tar"
    try:
        asking.Server.from_environment(root).fetch(digest, archive)
        unpack(archive, folder)
    finally:
        archive.unlink(missing_ok=True)


def unpack(archive: Path, folder: Path) -> None:
    """Files, folders and links that stay inside `folder`; anything else is refused."""
    folder.mkdir(exist_ok=True)
    for left in folder.iterdir():
        # A container that was started again begins anew.
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    try:
        with tarfile.open(archive, "r:*") as tar:
            # Checked here: Python before 3.11.4 has no filters, and Debian 12 has one of those.
            tar.extraction_filter = lambda member, _path: member
            for member in tar:
                _check(member, folder)
                tar.extract(member, folder)
    except tarfile.TarError as problem:
        raise PrepareError(f"the code cannot be unpacked: {problem}") from problem


def _check(member: tarfile.TarInfo, folder: Path) -> None:
    """Refuses what is not inside `folder`, links that were unpacked before included; its owner and
    mode become those of any file of ours."""
    root = os.path.realpath(folder)
    place = os.path.join(root, member.name)
    leads_to = [os.path.realpath(os.path.dirname(place))]
    if member.issym():
        leads_to.append(os.path.realpath(os.path.join(leads_to[0], member.linkname)))
    elif not (member.isreg() or member.isdir()):
        raise PrepareError(f"the code cannot be unpacked: {member.name} is no file, folder or link")
    else:
        leads_to.append(os.path.realpath(place))
    absolute = os.path.isabs(member.name) or (member.issym() and os.path.isabs(member.linkname))
    if absolute or any(os.path.commonpath((root, each)) != root for each in leads_to):
        raise PrepareError(f"the code cannot be unpacked: {member.name} leads out of its folder")
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    member.mode = (member.mode & 0o755) | (0o700 if member.isdir() else 0o600)


def _fail(reason: str, message: str) -> None:
    print(f"windlass: {message}", file=sys.stderr, flush=True)  # noqa: T201 - the log of the pod
    told = os.environ.get("WINDLASS_TERMINATION_LOG", "/dev/termination-log")
    try:
        Path(told).write_text(json.dumps({"reason": reason, "message": message[-_MOST_MESSAGE:]}))
    except OSError as problem:
        print(f"windlass: {told}: {problem}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
