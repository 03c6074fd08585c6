"""A user id for each namespace, and the owner alone in his own."""

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests.unit.agent import nodes
from tests.unit.agent.nodes import ended
from windlass.agent.node import privileges, single_tenant
from windlass.agent.pods import volumes
from windlass.kinds.types import core, meta
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore

pytestmark = nodes.as_root
ABLE = privileges.Abilities("user", mounts=True)


@pytest.fixture
async def shared(node):
    users = privileges.NamespaceUsers(node.folder)
    await node.restart(abilities=ABLE, user_of=users.of)
    return node


async def test_a_pod_runs_as_its_namespace_and_has_nothing_of_the_machines_owner(shared):
    await shared.create(
        "id -u; id -G; pwd; touch f $HOME/f $TMPDIR/f && echo wrote; "
        "grep NoNewPrivs /proc/self/status; echo $USER"
    )
    pod = await shared.phase("Succeeded")
    root = shared.folder / "pods" / pod.uid / "root"
    seen = shared.folder / "self/work"
    expected = ["200000", "200000", str(seen), "wrote", "NoNewPrivs:\t1", "team"]
    assert shared.text(pod).splitlines() == expected
    assert (root / "work/f").stat().st_uid == 200_000


async def test_what_is_closed_stays_closed(shared):
    (shared.folder / "secret").write_text("hush")
    (shared.folder / "secret").chmod(0o600)
    await shared.create("cat {here}/secret; ls {here}; ls {here}/pods; cat /etc/shadow; true")
    pod = await shared.phase("Succeeded")
    said = shared.text(pod)
    assert "hush" not in said
    assert "store.db" not in said
    assert "root:" not in said
    assert said.count("Permission denied") + said.count("No such file") >= 2


async def test_pods_do_not_see_each_other(shared):
    await shared.create("echo mine > f; touch {here}/x; while :; do sleep 0.02; done", "one")
    one = await shared.phase("Running", "one")
    await shared.create(f"ls {shared.folder}/pods; ls {shared.folder}/pods/{one.uid}; true", "two")
    two = await shared.phase("Succeeded", "two")
    assert shared.text(two).splitlines()[0] == two.uid
    assert one.uid not in shared.text(two).splitlines()


@pytest.mark.skipif(
    tuple(map(int, os.uname().release.split(".")[:2])) < (5, 8), reason="one /proc for all"
)
async def test_a_pod_reads_no_command_lines_of_others_and_its_own(shared):
    mark = f"/proc/{os.getpid()}/cmdline"  # the test's own process is root's
    await shared.create(f"cat {mark}; cat /proc/self/comm; sh -c 'tr -d x < /proc/$PPID/comm'")
    pod = await shared.phase("Succeeded")
    said = shared.text(pod)
    assert "pytest" not in said
    assert "cat" in said.splitlines()
    assert said.splitlines()[-1] == "sh"


async def test_python_works_although_it_may_be_in_a_closed_folder(shared):
    await shared.create("python -c 'import windlass.agent.runtime.shim, os; print(os.getuid())'")
    pod = await shared.phase("Succeeded")
    assert shared.text(pod) == "200000\n"


async def test_nothing_of_a_pod_stays_when_it_goes(shared):
    before = mounts()
    await shared.create("mkdir -p d && chmod 500 d && while :; do sleep 0.02; done")
    pod = await shared.phase("Running")
    await shared.store.delete(core.Pod, "p", "team", grace_seconds=0)
    await shared.gone(shared.folder / "pods" / pod.uid)
    assert mounts() == before


def host(path, at: str = "/windlass/v", **more) -> dict:
    """The volume and its mount, as arguments of `create`."""
    given = core.VolumeMount(name="v", mount_path=at, **more)
    return {"volumes": [{"name": "v", "hostPath": {"path": str(path)}}], "volume_mounts": [given]}


@pytest.fixture
async def listed(shared, tmp_path):
    """The machine's folder `data` with a file, which isolated pods may mount."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "f").write_text("public\n")
    folder.chmod(0o777)
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_mode & 0o005 == 0:
            parent.chmod(0o711)
    await shared.restart(host_mounts=(str(folder),))
    return folder


async def test_folders_of_the_machine_that_are_not_listed_are_refused_alike(shared, tmp_path):
    (tmp_path / "is-there").mkdir()
    said = {}
    for name in ("is-there", "is-not-there"):
        await shared.create("true", name, **host(tmp_path / name))
        said[name] = (await shared.phase("Failed", name)).status.message
        assert f"windlass up --host-mounts {tmp_path / name}" in said[name]
    assert said["is-there"].replace("is-there", "is-not-there") == said["is-not-there"]


async def test_a_listed_folder_is_mounted_and_not_what_is_beside_it(shared, listed):
    beside = listed.with_name("data-of-others")
    beside.mkdir()
    (listed / "link").symlink_to(beside)
    await shared.create("cat $WINDLASS_ROOT/v/f", "one", **host(listed))
    assert shared.text(await shared.phase("Succeeded", "one")) == "public\n"
    for number, path in enumerate((beside, listed / "link", listed / "../data-of-others")):
        await shared.create("true", f"no-{number}", **host(path))
        assert "may mount" in (await shared.phase("Failed", f"no-{number}")).status.message


async def test_a_listed_folder_that_is_closed_to_the_user_is_refused(shared, listed):
    closed = listed / "closed"
    (closed / "data").mkdir(parents=True)
    closed.chmod(0o700)
    await shared.create("true", **host(closed / "data"))
    assert "is closed to user 200000" in (await shared.phase("Failed")).status.message


def setup(script: str, source, at: str = "/windlass/all") -> dict:
    """An init container that changes a folder before the main container mounts a part of it."""
    container = core.Container(
        name="i", image=nodes.HOST, command=["sh", "-c", script],
        volume_mounts=[core.VolumeMount(name="all", mount_path=at)],
    )  # fmt: skip
    return {"init": container, "volume": {"name": "all", "hostPath": {"path": str(source)}}}


@pytest.mark.parametrize("where", ["listed", "team"])
async def test_a_link_that_the_setup_puts_in_place_of_a_folder_is_not_followed(
    shared, listed, where
):
    (shared.folder / "store.db").write_text("hush")
    (listed / "part").mkdir(mode=0o777)
    source = str(listed) if where == "listed" else "/windlass/team"
    first = setup(f"cd $WINDLASS_ROOT/all; rm -rf part; ln -s {shared.folder} part", source)
    main = host(f"{source}/part")
    main["volumes"].append(first["volume"])
    await shared.create(
        "cat $WINDLASS_ROOT/v/store.db; true", init_containers=[first["init"]], **main
    )

    def refused(pod: core.Pod) -> bool:
        container = next(iter(pod.status.container_statuses or ()), None)
        waiting = container and container.state.waiting
        ended = container and container.state.terminated
        if waiting:
            return "may mount" in (waiting.message or "")
        return bool(ended) and ended.reason == "StartError"

    pod = await shared.until(refused)
    assert "hush" not in shared.text(pod)


@pytest.mark.parametrize(
    "target", ["/proc", "/proc/self/fd", "/sys", "/dev", "/etc", "/usr/lib", "/"]
)
async def test_no_volume_hides_what_the_isolation_needs(shared, target):
    await shared.create(
        "true", volumes=[{"name": "v", "emptyDir": {}}],
        volume_mounts=[core.VolumeMount(name="v", mount_path=target)],
    )  # fmt: skip
    assert "would hide" in (await shared.phase("Failed")).status.message


async def test_no_volume_hides_the_state_folder_or_python(shared):
    for number, target in enumerate((shared.folder, shared.folder / "pods", sys.prefix)):
        await shared.create(
            "true", f"p{number}", volumes=[{"name": "v", "emptyDir": {}}],
            volume_mounts=[core.VolumeMount(name="v", mount_path=str(target))],
        )  # fmt: skip
        assert "would hide" in (await shared.phase("Failed", f"p{number}")).status.message


@pytest.fixture
def closed_folder(tmp_path_factory):
    """A folder of root that others may not enter, with a file, and links beside it that lead into
    it: to what is there, to what is not there, and through a link in it to a system folder."""
    machine = tmp_path_factory.mktemp("machine")
    closed = machine / "closed"
    closed.mkdir(mode=0o700)
    (closed / "is-there").touch()
    (closed / "system").symlink_to("/etc")
    for name in ("is-there", "is-not-there", "system"):
        (machine / f"link-{name}").symlink_to(closed / name)
    for parent in (machine, *machine.parents):
        if parent.stat().st_mode & 0o001 == 0:
            parent.chmod(0o711)
    return closed


async def test_a_target_says_nothing_of_what_is_closed_to_the_pod(shared, closed_folder):
    beside = closed_folder.parent
    said = set()
    for number, path in enumerate((
        closed_folder / "is-there", closed_folder / "is-not-there", closed_folder / "system/passwd",
        beside / "link-is-there", beside / "link-is-not-there", beside / "link-system",
        beside / "absent",
    )):  # fmt: skip
        await shared.create(
            "true", f"p{number}", volumes=[{"name": "v", "emptyDir": {}}],
            volume_mounts=[core.VolumeMount(name="v", mount_path=str(path))],
        )  # fmt: skip
        message = (await shared.phase("Failed", f"p{number}")).status.message
        said.add(message.replace(str(path), "PATH"))
    (one,) = said
    assert "does not exist on this node, or is closed to user 200000" in one


def test_links_are_followed_only_where_the_user_could_follow_them(closed_folder):
    found, beside = privileges.resolved_for, closed_folder.parent
    (beside / "open").mkdir(mode=0o755)
    (beside / "to-open").symlink_to("open")
    (beside / "loop").symlink_to("loop")
    assert found(f"{beside}/to-open/x/y", 200_000) == beside / "open/x/y"
    assert found(f"{beside}/link-system/passwd", 200_000) == closed_folder / "system/passwd"
    assert found(f"{closed_folder}/system", 0) == Path("/etc").resolve()
    assert found(f"{beside}/loop/x", 200_000) == beside / "loop/x"


async def test_the_tree_of_another_user_is_killed_with_its_shim(shared):
    await shared.create("setsid sleep 1000 & echo $! > left; touch ready; wait")
    pod = await shared.phase("Running")
    work = shared.folder / "pods" / pod.uid / "root/work"
    await shared.there(work / "ready")
    left = (work / "left").read_text().strip()
    record = shared.folder / "pods" / pod.uid / "containers/c/0/shim.json"
    os.kill(privileges.procfs.read_json(record)["pid"], 9)
    assert ended(await shared.phase("Failed")).reason == "ShimLost"
    async with asyncio.timeout(10):
        while os.path.exists(f"/proc/{left}/exe"):  # noqa: ASYNC240
            await asyncio.sleep(0.01)


# --- users


def test_ids_are_kept_and_never_given_twice(tmp_path):
    users = privileges.NamespaceUsers(tmp_path)
    assert [users.of("a"), users.of("b"), users.of("a")] == [200_000, 200_001, 200_000]
    again = privileges.NamespaceUsers(tmp_path)
    assert [again.of("c"), again.of("b")] == [200_002, 200_001]


def binding(role: str, namespace: str = "") -> dict:
    name = meta.ObjectMeta(name=f"b-{role}", namespace=namespace)
    subject = core.Subject(kind="User", name="eve")
    ref = core.RoleRef(kind="ClusterRole", name=role)
    return {"metadata": name, "role_ref": ref, "subjects": [subject]}


@pytest.mark.parametrize(
    ("made", "alone"),
    [
        (None, True),
        (core.RoleBinding(**binding("windlass-member", "default")), False),
        (core.RoleBinding(**binding("windlass-member", "team")), True),
        (core.RoleBinding(**binding("windlass-viewer", "default")), True),
        (core.ClusterRoleBinding(**binding("windlass-admin")), False),
        (core.ClusterRoleBinding(**binding("windlass-viewer")), True),
    ],
)
async def test_the_owner_is_himself_in_default_as_long_as_he_is_alone_there(node, made, alone):
    if made is not None:
        space = core.Namespace(metadata=meta.ObjectMeta(name="default"))
        await node.store.create(space)
        await node.store.create(made)
    check = single_tenant.SingleTenantCheck(node.store, privileges.NamespaceUsers(node.folder))
    async with check.watching():
        assert check.is_single_tenant() is alone
        assert check.user_of("default") == (None if alone else 200_000)
        assert check.user_of("team") >= 200_000


def mounts() -> str:
    with open("/proc/self/mounts") as file:
        return file.read()


@pytest.fixture
async def outside_of_tmp(monkeypatch):
    """A node whose state folder is not below /tmp, as on a real machine."""
    state = Path(tempfile.mkdtemp(prefix="windlass-test-", dir="/var/tmp"))
    api = await Api.open(state / "store.db")
    made = nodes.Node(EmbeddedStore(api), state)
    await made.store.create(core.Namespace(metadata=meta.ObjectMeta(name="team")))
    users = privileges.NamespaceUsers(state)
    monkeypatch.setattr(
        volumes, "_software",
        lambda: [path for path in privileges.own_software() if not path.is_relative_to("/tmp")],
    )  # fmt: skip
    await made.restart(abilities=ABLE, user_of=users.of)
    yield made
    await made.stop()
    await api.close()
    shutil.rmtree(state, ignore_errors=True)


async def test_tmp_of_a_team_is_the_pods_own(outside_of_tmp, tmp_path):
    mark = f"/tmp/windlass-{os.getpid()}"
    node = outside_of_tmp
    (tmp_path / "seen-by-all").touch()
    await node.create(f"ls /tmp; echo x > {mark}; cat $WINDLASS_ROOT/tmp/{os.path.basename(mark)}")
    pod = await node.phase("Succeeded")
    assert node.text(pod) == "x\n"
    assert not os.path.exists(mark)  # noqa: ASYNC240


async def test_a_volume_is_mounted_below_the_pods_own_tmp(outside_of_tmp):
    node = outside_of_tmp
    await node.create(
        "echo x > /tmp/deep/data/f && cat /tmp/deep/data/f",
        volumes=[{"name": "v", "emptyDir": {}}],
        volume_mounts=[core.VolumeMount(name="v", mount_path="/tmp/deep/data")],
    )
    pod = await node.phase("Succeeded")
    assert (node.folder / "pods" / pod.uid / "volumes/v/f").read_text() == "x\n"
    assert not os.path.exists("/tmp/deep")  # noqa: ASYNC240
