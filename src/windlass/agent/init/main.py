"""Inside a pod, before its command: fetch the code, build the environment, find the other members.

`PYTHON -I -m windlass.agent.prepare`, as the init container that `control.podrender` writes. What
to do is in WINDLASS_PREPARE. When something fails, reason and message go to the pod's termination
log. Standard library only: it starts quickly.

    run/environment      a script that a shell reads before the command; it reads another, with
                         the packages' paths, which `agent.furnishing` writes
    run/bin/sh ...       that shell, where the command may run in an image that has none
    run/companion.py     for frameworks that start things on other members
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

from windlass import frameworks
from windlass.agent import asking, environments, furnishing
from windlass.frameworks import companion, group
from windlass.frameworks import order as orders

FAILED = furnishing.FAILED
_LATE = "Timeout"
_TOOLS = ("sh", "kill", "sleep")


class PrepareError(Exception):
    """Why the run cannot start, for people."""


def main() -> int:
    root = Path(os.environ.get("WINDLASS_ROOT", "/windlass"))
    try:
        prepare(root, json.loads(os.environ["WINDLASS_PREPARE"]))
    except asking.LateError as problem:
        told = f"{problem}; look at what keeps them with: windlass why RUN"
        furnishing.leave_words(_LATE, told)
        return 1
    except (
        PrepareError, asking.RefusedError, environments.BuildError, furnishing.SetupError, OSError,
    ) as problem:  # fmt: skip
        furnishing.leave_words(FAILED, str(problem))
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
    if order.get("image"):
        # Packages are for the Python of that image: made there, when this has ended.
        furnishing.copy_into(root, order["library"])
    else:
        furnishing.furnish(root, order, code)
    rendered = None
    if order.get("group"):
        # Last: all that takes time is done by then, and the others are there.
        rendered = _find_others(root, order["group"], order["patience"])
    _write_entry(root, rendered)


def _write_entry(root: Path, found: group.Rendered | None) -> None:
    """A script that a shell reads before the command. It notes which process becomes the command:
    whoever wants to send it a signal of the run's own looks there."""
    path = root / "run" / "environment"
    lines = [f"echo $$ > {shlex.quote(f'{path}.pid')}"]
    if found is not None:
        told = found.variables.items()
        lines += [f"export {name}={shlex.quote(value)}" for name, value in told]
    lines.append(f". {shlex.quote(str(root / furnishing.PACKAGES))}")
    if found is not None and found.command:
        lines.append(f"set -- {shlex.join(found.command)}")
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


if __name__ == "__main__":
    sys.exit(main())
