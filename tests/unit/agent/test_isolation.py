"""A user id for each namespace, and the owner alone in his own."""

import asyncio
import os

import pytest

from tests.unit.agent import nodes
from tests.unit.agent.nodes import ended
from windlass.agent import owners, privileges
from windlass.kinds import kubernetes, meta

pytestmark = nodes.as_root
ABLE = privileges.Abilities("user", mounts=True)


@pytest.fixture
async def shared(node):
    users = privileges.Users(node.folder)
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
    await shared.create("python -c 'import windlass.agent.shim, os; print(os.getuid())'")
    pod = await shared.phase("Succeeded")
    assert shared.text(pod) == "200000\n"


async def test_nothing_of_a_pod_stays_when_it_goes(shared):
    before = mounts()
    await shared.create("mkdir -p d && chmod 500 d && while :; do sleep 0.02; done")
    pod = await shared.phase("Running")
    await shared.store.delete(kubernetes.Pod, "p", "team", grace_seconds=0)
    await shared.gone(shared.folder / "pods" / pod.uid)
    assert mounts() == before


async def test_a_folder_that_is_closed_to_the_user_is_refused_as_a_volume(shared, tmp_path):
    closed = tmp_path / "closed"
    (closed / "data").mkdir(parents=True)
    closed.chmod(0o700)
    await shared.create(
        "true", volumes=[{"name": "v", "hostPath": {"path": str(closed / "data")}}],
        volume_mounts=[kubernetes.VolumeMount(name="v", mount_path="/windlass/v")],
    )  # fmt: skip
    assert "is closed to user 200000" in (await shared.phase("Failed")).status.message


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


# --- who is who


def test_ids_are_kept_and_never_given_twice(tmp_path):
    users = privileges.Users(tmp_path)
    assert [users.of("a"), users.of("b"), users.of("a")] == [200_000, 200_001, 200_000]
    again = privileges.Users(tmp_path)
    assert [again.of("c"), again.of("b")] == [200_002, 200_001]


def binding(role: str, namespace: str = "") -> dict:
    name = meta.ObjectMeta(name=f"b-{role}", namespace=namespace)
    subject = kubernetes.Subject(kind="User", name="eve")
    ref = kubernetes.RoleRef(kind="ClusterRole", name=role)
    return {"metadata": name, "role_ref": ref, "subjects": [subject]}


@pytest.mark.parametrize(
    ("made", "alone"),
    [
        (None, True),
        (kubernetes.RoleBinding(**binding("windlass-member", "default")), False),
        (kubernetes.RoleBinding(**binding("windlass-member", "team")), True),
        (kubernetes.RoleBinding(**binding("windlass-viewer", "default")), True),
        (kubernetes.ClusterRoleBinding(**binding("windlass-admin")), False),
        (kubernetes.ClusterRoleBinding(**binding("windlass-viewer")), True),
    ],
)
async def test_the_owner_is_himself_in_default_as_long_as_he_is_alone_there(node, made, alone):
    if made is not None:
        space = kubernetes.Namespace(metadata=meta.ObjectMeta(name="default"))
        await node.store.create(space)
        await node.store.create(made)
    holders = owners.Owners(node.store, privileges.Users(node.folder))
    async with holders.watching():
        assert holders.alone() is alone
        assert holders.user_of("default") == (None if alone else 200_000)
        assert holders.user_of("team") >= 200_000


def mounts() -> str:
    with open("/proc/self/mounts") as file:
        return file.read()
