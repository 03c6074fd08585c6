"""Inside a pod, before its command: fetch the code, build the environment, run `setup`.

`PYTHON -I -m windlass.agent.prepare`, as the init container that `control.podrender` writes. What
to do is in WINDLASS_PREPARE. When something fails, reason and message go to the pod's termination
log. Standard library only: it starts quickly and can be copied into any image.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shlex
import shutil
import ssl
import subprocess
import sys
import tarfile
import time
import urllib.parse
from pathlib import Path
from typing import Any

from windlass.agent import environments

_TRIES = 8
_PIECE = 1 << 20
_MOST_MESSAGE = 4000
FAILED = "ImageOrEnvironmentFailed"


class PrepareError(Exception):
    """Why the run cannot start, for people."""


def main() -> int:
    root = Path(os.environ.get("WINDLASS_ROOT", "/windlass"))
    try:
        prepare(root, json.loads(os.environ["WINDLASS_PREPARE"]))
    except (PrepareError, environments.BuildError, OSError) as problem:
        _fail(str(problem))
        return 1
    return 0


def prepare(root: Path, order: dict[str, Any]) -> None:
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
    (root / "run").mkdir(exist_ok=True)
    entry = root / "run" / "environment"
    _write_entry(entry, variables)
    if order["setup"]:
        _run_setup(order["setup"], entry, code or root)


def _write_entry(path: Path, variables: dict[str, str]) -> None:
    """A script that a shell reads before the command."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    if variables:
        lines.append('export PATH="$VIRTUAL_ENV/bin:$PATH"')
        lines.append("unset PYTHONHOME")
    fresh = path.with_name(path.name + ".new")
    fresh.write_text("\n".join([*lines, ""]))
    fresh.replace(path)


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
    archive.parent.mkdir(exist_ok=True)
    try:
        _download(digest, archive, root / "token" / "token")
        unpack(archive, folder)
    finally:
        archive.unlink(missing_ok=True)


def _download(digest: str, target: Path, token: Path) -> None:
    """Tried again while the server is away; it may be starting again."""
    for attempt in range(_TRIES):
        try:
            _download_once(digest, target, token.read_text().strip())
        except (OSError, http.client.HTTPException) as problem:
            if isinstance(problem, OSError) and problem.filename:
                raise  # our own disk, not the server
            if attempt + 1 == _TRIES:
                raise PrepareError(f"the code cannot be fetched: {problem}") from problem
            time.sleep(min(8.0, 0.25 * 2**attempt))
        else:
            return


def _download_once(digest: str, target: Path, token: str) -> None:
    server = urllib.parse.urlsplit(os.environ["WINDLASS_SERVER"])
    authority = os.environ.get("WINDLASS_AUTHORITY") or None
    trust = ssl.create_default_context(cadata=authority)
    link = http.client.HTTPSConnection(server.netloc, context=trust, timeout=60)
    namespace = urllib.parse.quote(os.environ["WINDLASS_NAMESPACE"], safe="")
    path = f"/apis/platform.windlass.dev/v1alpha1/namespaces/{namespace}/blobs/{digest}"
    try:
        link.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = link.getresponse()
        if answer.status != 200:
            _refused(answer)
        seen = hashlib.sha256()
        with target.open("wb") as file:
            while piece := answer.read(_PIECE):
                seen.update(piece)
                file.write(piece)
    finally:
        link.close()
    if f"sha256:{seen.hexdigest()}" != digest:
        raise http.client.HTTPException("what came is not what was uploaded")


def _refused(answer: http.client.HTTPResponse) -> None:
    body = answer.read(65536)
    if answer.status >= 500 or answer.status == 429:
        raise http.client.HTTPException(f"the server answered {answer.status}")
    try:
        message = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        message = f"the server answered {answer.status}"
    raise PrepareError(f"the code cannot be fetched: {message}")


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


def _fail(message: str) -> None:
    print(f"windlass: {message}", file=sys.stderr, flush=True)  # noqa: T201 - the log of the pod
    told = os.environ.get("WINDLASS_TERMINATION_LOG", "/dev/termination-log")
    try:
        Path(told).write_text(json.dumps({"reason": FAILED, "message": message[-_MOST_MESSAGE:]}))
    except OSError as problem:
        print(f"windlass: {told}: {problem}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
