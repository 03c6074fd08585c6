"""Mounts of a container: what a job changes meanwhile leads nowhere, with and without the calls of
newer kernels."""

import contextlib
import itertools
import os
import threading
import traceback

import pytest

from tests.unit.agent import nodes
from tests.unit.agent.test_isolation import host, shared  # noqa: F401 (a fixture)
from windlass.agent.runtime import mount_calls, sandbox

pytestmark = nodes.as_root
USER = 200_000


@pytest.fixture(params=["by handle", "older kernel"], autouse=True)
def kernel(request, monkeypatch):
    if request.param == "older kernel":
        monkeypatch.setattr(mount_calls, "available", lambda: False)
    elif not mount_calls.available():
        pytest.skip("this kernel lacks mounts by handle")


@pytest.fixture
def data(tmp_path):
    """A folder that a job may write to, with a folder `part`, and a secret beside it."""
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_mode & 0o005 == 0:
            parent.chmod(0o711)
    folder = tmp_path / "data"
    (folder / "part").mkdir(parents=True)
    (folder / "part/f").write_text("public")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "f").write_text("secret")
    (tmp_path / "at").mkdir()
    return folder


def inside(mounts, look):
    """What `look` returns in a mount namespace with these mounts; the OSError if it cannot be."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "failed"
        with contextlib.suppress(BaseException):
            try:
                sandbox.enter(mounts)
                said = str(look())
            except OSError as problem:
                said = f"refused: {problem.strerror}"
            except BaseException:
                said = traceback.format_exc()
        os.write(writer, said.encode()[:60_000])
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    return said


def bind(source, target, **more):
    below = str(source).lstrip("/")
    return {"kind": "bind", "source": "/", "below": below, "target": str(target), **more}


def test_a_folder_is_mounted_and_only_inside(data, tmp_path):
    at = tmp_path / "at"
    read = (at / "f").read_text
    assert inside([bind(data / "part", at, user=USER)], read) == "public"
    assert list(at.iterdir()) == []


@pytest.mark.parametrize("which", ["last", "middle"])
def test_a_link_on_the_way_is_refused(data, tmp_path, which):
    if which == "last":
        (data / "link").symlink_to(tmp_path / "closed")
        source = data / "link"
    else:
        (data / "link").symlink_to(data)
        source = data / "link/part"
    said = inside([bind(source, tmp_path / "at")], lambda: os.listdir(tmp_path / "at"))
    assert said == "refused: is a symbolic link" or "Not a directory" in said


def test_a_link_as_target_is_refused(data, tmp_path):
    (tmp_path / "goes").symlink_to("/etc")
    said = inside([bind(data, tmp_path / "goes")], lambda: os.listdir("/etc"))
    assert said == "refused: is a symbolic link"


def test_what_the_user_may_not_enter_is_refused(data, tmp_path):
    source = tmp_path / "closed/f"
    target = data / "part/f"
    assert inside([bind(source, target, user=USER)], target.read_text).startswith("refused")


def test_read_only_counts_for_all_mounts_below(data, tmp_path):
    at = tmp_path / "at"

    def write(path) -> str:
        with contextlib.suppress(OSError):
            (path / "new").write_text("x")
            return "written"
        return "kept"

    below = {"kind": "tmpfs", "target": str(data / "part"), "size": 4096}
    outer, inner = [below], [bind(data, at, readOnly=True)]
    said = inside(outer, lambda: inside(inner, lambda: (write(at), write(at / "part"))))
    assert said == "('kept', 'kept')"


@pytest.mark.parametrize("source", ["/proc", "/proc/1", "/sys", "/"])
def test_a_folder_that_shows_processes_is_refused(data, tmp_path, source):
    said = inside([bind(source, tmp_path / "at", user=USER)], lambda: "mounted")
    assert said == "refused: shows processes and settings of the machine"


def test_a_mount_over_proc_does_not_redirect_later_mounts(data, tmp_path):
    """The later mounts must not go through a /proc that the job brought."""
    forged = tmp_path / "forged"
    for number in range(64):
        (forged / "self/fd").mkdir(parents=True, exist_ok=True)
        (forged / f"self/fd/{number}").symlink_to(tmp_path / "closed")
    mounts = [bind(forged, "/proc"), bind(data / "part", tmp_path / "at")]
    said = inside(mounts, (tmp_path / "at/f").read_text)
    assert "secret" not in said


def test_links_that_are_swapped_while_it_is_mounted_never_show_what_is_closed(data, tmp_path):
    """The race itself: another thread swaps the folder and a link as fast as it can."""
    at, stop = tmp_path / "at", threading.Event()
    (data / "swap").mkdir()
    (data / "swap/f").write_text("public")

    def swap() -> None:
        spare = data / "spare"
        while not stop.is_set():
            with contextlib.suppress(OSError):
                os.rename(data / "swap", spare)
                os.symlink(tmp_path / "closed", data / "swap")
                os.unlink(data / "swap")
                os.rename(spare, data / "swap")

    thread = threading.Thread(target=swap)
    thread.start()
    seen = set()
    try:
        tries = itertools.count()
        while next(tries) < (1000 if os.environ.get("WINDLASS_SOAK") else 60) or len(seen) < 2:
            seen.add(inside([bind(data / "swap", at)], (at / "f").read_text))
    finally:
        stop.set()
        thread.join()
    assert "secret" not in seen


async def test_pods_that_start_while_a_link_is_swapped_see_nothing_closed(shared, data):  # noqa: F811
    """The same through the agent: its check and the shim's mount are not one step."""
    data.chmod(0o777)
    await shared.restart(host_mounts=(str(data),))
    stop = threading.Event()
    (data / "swap").mkdir(mode=0o755)
    (data / "swap/f").write_text("public")
    (shared.folder / "f").write_text("secret")

    def swap() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError):
                os.rename(data / "swap", data / "spare")
                os.symlink(shared.folder, data / "swap")
                os.unlink(data / "swap")
                os.rename(data / "spare", data / "swap")

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for number in range(8):
            await shared.create("cat $WINDLASS_ROOT/v/f; true", f"p{number}", **host(data / "swap"))
        done = ("Succeeded", "Failed", "Pending")
        for number in range(8):
            pod = await shared.until(
                lambda pod: pod.status.phase in done and bool(pod.status.conditions), f"p{number}"
            )
            assert "secret" not in shared.text(pod)
    finally:
        stop.set()
        thread.join()
