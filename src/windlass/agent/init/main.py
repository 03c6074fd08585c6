"""The init container of a pod: fetches the code, builds the environment, finds the other pods of
the run.

`PYTHON -I -m windlass.agent.init.main`, in the init container that `control.runs.pod_template`
adds. The variable WINDLASS_PREPARE has its configuration. On a failure, reason and message are
written to the pod's termination log. Standard library only, for a quick start.

    run/environment      a script that a shell sources before the command; it sources a second one
                         with the paths of packages, which `agent.init.image_environment` writes
    run/bin/sh ...       that shell, for images that have none
    run/python           the package `windlass` for programs inside the job (`windlass.injob`)
    run/companion.py     for frameworks that start processes in other pods
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

from windlass import frameworks, injob
from windlass.agent.init import image_environment, platform_client, python_environments
from windlass.frameworks import companion, group, group_file

FAILED = image_environment.FAILED
_LATE = "Timeout"
_TOOLS = ("sh", "kill", "sleep")
_PYTHON = "run/python"
"""Folder of `windlass.injob` below the pod's folder, in a pod with images."""
MOST_ENTRIES, MOST_BYTES = 500_000, 128 << 30
"""Of the uploaded code, unpacked."""


class PrepareError(Exception):
    """The run cannot start; the message is for the user."""


def main() -> int:
    root = Path(os.environ.get("WINDLASS_ROOT", "/windlass"))
    try:
        prepare(root, json.loads(os.environ["WINDLASS_PREPARE"]))
    except platform_client.LateError as problem:
        message = f"{problem}; see why they wait with: windlass why RUN"
        image_environment.write_termination_message(_LATE, message)
        return 1
    except (
        PrepareError, platform_client.RejectedError, python_environments.BuildError,
        image_environment.SetupError, OSError,
    ) as problem:  # fmt: skip
        image_environment.write_termination_message(FAILED, str(problem))
        return 1
    return 0


def prepare(root: Path, config: dict[str, Any]) -> None:
    """Does what the configuration in WINDLASS_PREPARE requests."""
    (root / "run").mkdir(exist_ok=True)
    if config.get("tools"):
        _copy_tools(root / "run")
        injob.copy_to(root / _PYTHON)
    code = None
    if config["code"]:
        code = root / "code"
        _fetch_code(code, config["code"], root)
    if config.get("image"):
        # Packages are built for the Python of that image, in the init container after this one.
        image_environment.copy_into(root, config["library"])
    else:
        image_environment.build(root, config, code)
    rendered = None
    if config.get("group"):
        # Last: after the slow steps, the other pods have their addresses.
        rendered = _find_others(root, config["group"], config["patience"])
    _write_entry(root, rendered, own_library=bool(config.get("tools")))


def _write_entry(root: Path, found: group.Rendered | None, *, own_library: bool) -> None:
    """Writes the script that a shell sources before the command. It records the pid of the command,
    which receives the run's signals."""
    path = root / "run" / "environment"
    lines = [f"echo $$ > {shlex.quote(f'{path}.pid')}"]
    if found is not None:
        variables = found.variables.items()
        lines += [f"export {name}={shlex.quote(value)}" for name, value in variables]
    lines.append(f". {shlex.quote(str(root / image_environment.PACKAGES))}")
    if own_library:
        # Here and not in the pod: the image may set PYTHONPATH.
        folder = shlex.quote(str(root / _PYTHON))
        lines.append(f'export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}"{folder}')
    if found is not None and found.command:
        lines.append(f"set -- {shlex.join(found.command)}")
    fresh = path.with_name(path.name + ".new")
    fresh.write_text("\n".join([*lines, ""]))
    fresh.replace(path)


def _find_others(root: Path, config: dict[str, Any], seconds: float) -> group.Rendered:
    server = platform_client.PlatformClient.from_environment(root)
    sizes = group_file.sizes(config)
    print("waiting for", sum(sizes.values()), "replicas", flush=True)  # noqa: T201 - the pod's log
    addresses = server.addresses(config["run"], config["attempt"], sizes, seconds)
    found, own = group_file.read(config, addresses, str(root), str(root / "run" / "companion.py"))
    rendered = frameworks.render(config["framework"], found, own)
    companion.write_files(root / "run", dict(rendered.files))
    return rendered


def _copy_tools(folder: Path) -> None:
    """Copies a static shell and the companion: the command's image may have neither."""
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
        platform_client.PlatformClient.from_environment(root).fetch(digest, archive)
        unpack(archive, folder)
    finally:
        archive.unlink(missing_ok=True)


def unpack(archive: Path, folder: Path) -> None:
    """Extracts files, folders and links that stay inside of `folder`. Raises PrepareError for
    anything else."""
    folder.mkdir(exist_ok=True)
    for left in folder.iterdir():
        # A restarted container starts with an empty folder.
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    try:
        with tarfile.open(archive, "r:*") as tar:
            # `_check` is the filter: Python before 3.11.4, as in Debian 12, has none.
            tar.extraction_filter = lambda member, _path: member
            count = size = 0
            for member in tar:
                _check(member, folder)
                count, size = count + 1, size + member.size
                _refuse_much(count, size)
                tar.extract(member, folder)
    except tarfile.TarError as problem:
        raise PrepareError(f"the code cannot be unpacked: {problem}") from problem


def _refuse_much(entries: int, size: int) -> None:
    """Before a member is extracted: a small archive may contain very many, or very large ones."""
    if entries > MOST_ENTRIES:
        raise PrepareError(
            f"the code cannot be unpacked: it has more than {MOST_ENTRIES} files; leave some out "
            "with .windlassignore, or mount them"
        )
    if size > MOST_BYTES:
        raise PrepareError(
            f"the code cannot be unpacked: it has more than {MOST_BYTES >> 30} GiB; leave files "
            "out with .windlassignore, or mount them"
        )


def _check(member: tarfile.TarInfo, folder: Path) -> None:
    """Rejects a member outside of `folder`, also through links that were extracted before. Sets its
    owner and mode."""
    root = os.path.realpath(folder)
    target = os.path.join(root, member.name)
    leads_to = [os.path.realpath(os.path.dirname(target))]
    if member.issym():
        leads_to.append(os.path.realpath(os.path.join(leads_to[0], member.linkname)))
    elif not (member.isreg() or member.isdir()):
        raise PrepareError(
            f"the code cannot be unpacked: {member.name} is not a file, folder or link"
        )
    else:
        leads_to.append(os.path.realpath(target))
    absolute = os.path.isabs(member.name) or (member.issym() and os.path.isabs(member.linkname))
    if absolute or any(os.path.commonpath((root, each)) != root for each in leads_to):
        raise PrepareError(f"the code cannot be unpacked: {member.name} leads out of its folder")
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    member.mode = (member.mode & 0o755) | (0o700 if member.isdir() else 0o600)


if __name__ == "__main__":
    sys.exit(main())
