"""Volumes as containers see them, with and without the right to mount."""

import os
import stat
import time
from pathlib import Path

import pytest

from tests.unit.agent import nodes
from windlass.agent.node import privileges
from windlass.agent.pods import volumes
from windlass.agent.runtime import sandbox
from windlass.kinds.types import core, meta

MOUNTING = pytest.param(privileges.Abilities(mounts=True), id="mounts", marks=nodes.as_root)
LINKING = pytest.param(privileges.Abilities(), id="links")


class Tokens:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int]] = []

    async def request(self, pod: core.Pod, audience: str, seconds: int) -> str:
        self.asked.append((pod.name, audience, seconds))
        return f"token-{len(self.asked)}"


@pytest.fixture(params=[MOUNTING, LINKING])
async def able(request, node):
    """A node that can, and one that cannot mount."""
    await node.restart(abilities=request.param, tokens=Tokens())
    name = meta.ObjectMeta(name="keys", namespace="team")
    await node.store.create(core.ConfigMap(metadata=name, data={"a": "1", "b": "2"}))
    await node.store.create(core.Secret(metadata=name, string_data={"s": "hush"}))
    return node


def mounts() -> str:
    return Path("/proc/mounts").read_text()


def mount(name: str, path: str, **more) -> core.VolumeMount:
    return core.VolumeMount(name=name, mount_path=path, **more)


CONTENT = {
    "a config": ({"configMap": {"name": "keys"}}, "cat v/a v/b", "12"),
    "some of a config": (
        {"configMap": {"name": "keys", "items": [{"key": "a", "path": "x/y"}]}},
        "cat v/x/y; ls v", "1x\n",
    ),
    "a secret with its mode": (
        {"secret": {"secretName": "keys", "defaultMode": 0o440}}, "cat v/s; stat -c %a v/s",
        "hush440\n",
    ),
    "what is optional and not there": (
        {"secret": {"secretName": "none", "optional": True}}, "ls v", "",
    ),
    "fields of the pod": (
        {"downwardAPI": {"items": [
            {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
            {"path": "cpu", "resourceFieldRef": {
                "containerName": "c", "resource": "limits.cpu", "divisor": "1m"}},
        ]}}, "cat v/name v/cpu", "p250",
    ),
    "several together, with a token": (
        {"projected": {"sources": [
            {"configMap": {"name": "keys"}}, {"secret": {"name": "keys"}},
            {"serviceAccountToken": {"path": "token", "audience": "windlass"}},
        ]}}, "ls v; cat v/token; stat -c %a v/token", "a\nb\ns\ntoken\ntoken-1600\n",
    ),
    "an empty folder": ({"emptyDir": {}}, "echo x > v/f; cat v/f", "x\n"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "script", "expected"), CONTENT.values(), ids=CONTENT)
async def test_what_a_volume_holds(able, source, script, expected):
    await able.create(
        f'cd "$WINDLASS_ROOT"; {script}',
        volumes=[{"name": "v", **source}],
        volume_mounts=[mount("v", "/windlass/v")],
        resources=core.ResourceRequirements(limits={"cpu": "250m"}),
    )
    pod = await able.phase("Succeeded")
    assert able.text(pod).replace("\n", "") == expected.replace("\n", "")


async def test_init_containers_fill_what_the_others_read(able):
    first = core.Container(
        name="first", image=nodes.HOST, command=["sh", "-c", "echo 1 > data/f; sleep 0.1"],
        working_dir="/windlass", volume_mounts=[mount("v", "/windlass/data")],
    )  # fmt: skip
    second = core.Container(
        name="second", image=nodes.HOST, command=["sh", "-c", "echo 2 >> $WINDLASS_ROOT/data/f"],
        volume_mounts=[mount("v", "/windlass/data")],
    )  # fmt: skip
    await able.create(
        "cat f", working_dir="/windlass/data", init_containers=[first, second],
        volumes=[{"name": "v", "emptyDir": {}}], volume_mounts=[mount("v", "/windlass/data")],
    )  # fmt: skip
    pod = await able.phase("Succeeded")
    assert able.text(pod) == "1\n2\n"
    codes = [s.state.terminated.exit_code for s in pod.status.init_container_statuses]
    assert codes == [0, 0]


async def test_a_part_of_a_volume(able):
    await able.create(
        "ls -d $WINDLASS_ROOT/p/. && touch $WINDLASS_ROOT/p/f && ls $WINDLASS_ROOT/all/a/b",
        volumes=[{"name": "v", "emptyDir": {}}],
        volume_mounts=[mount("v", "/windlass/p", sub_path="a/b"), mount("v", "/windlass/all")],
    )
    assert able.text(await able.phase("Succeeded")).splitlines()[1:] == ["f"]


async def test_the_team_folder_outlives_the_pod(able):
    for name in ("one", "two"):
        await able.create(
            "cat $WINDLASS_ROOT/cache/f; echo kept > $WINDLASS_ROOT/cache/f; true", name,
            volumes=[{"name": "v", "hostPath": {"path": "/windlass/team/environments"}}],
            volume_mounts=[mount("v", "/windlass/cache")],
        )  # fmt: skip
        pod = await able.phase("Succeeded", name)
    assert "kept" in able.text(pod)
    assert (able.folder / "teams/team/environments/f").read_text() == "kept\n"


async def test_a_token_is_renewed_before_it_ends(able):
    source = {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}
    pod = await able.create(
        "while ! grep -q token-2 $WINDLASS_ROOT/v/token; do sleep 0.02; done",
        volumes=[{"name": "v", "projected": {"sources": [source]}}],
        volume_mounts=[mount("v", "/windlass/v")],
    )
    await able.phase("Running")
    file = able.folder / "pods" / pod.uid / "volumes/v/token"
    old = time.time() - 590
    os.utime(file, (old, old))
    patch = {"metadata": {"labels": {"look": "again"}}}
    await able.store.patch(core.Pod, "p", "team", patch=patch)
    await able.phase("Succeeded")


# --- only with mounts


@nodes.as_root
async def test_mounts_elsewhere_are_visible_to_the_pod_alone(node, tmp_path, tmp_path_factory):
    await node.restart(abilities=privileges.Abilities(mounts=True))
    place = tmp_path_factory.mktemp("place")
    (tmp_path / "source").mkdir()
    (tmp_path / "source/f").write_text("there")
    before = mounts()
    await node.create(
        f"cat {place}/f; touch {place}/g || echo read-only; touch {{here}}/ready; "
        "while [ ! -e {here}/go ]; do sleep 0.02; done",
        volumes=[{"name": "v", "hostPath": {"path": str(tmp_path / "source")}}],
        volume_mounts=[mount("v", str(place), read_only=True)],
    )
    await node.phase("Running")
    await node.there(node.folder / "ready")
    assert os.listdir(place) == []
    assert mounts() == before
    (node.folder / "go").touch()
    pod = await node.phase("Succeeded")
    assert "there" in node.text(pod)
    assert "read-only" in node.text(pod)
    assert not (tmp_path / "source/g").exists()


REFUSED = {
    "a place that is not there": ({"emptyDir": {}}, "/no/such/place", "mkdir -p /no/such/place"),
    "a folder that is not there": (
        {"hostPath": {"path": "/no/such/folder"}}, "/windlass/v",
        "mount at /windlass/v: /no/such/folder is not on this node",
    ),
    "a way out": ({"emptyDir": {}}, "/windlass/v", "leads out"),
}  # fmt: skip


@nodes.as_root
@pytest.mark.parametrize(("source", "path", "words"), REFUSED.values(), ids=REFUSED)
async def test_a_volume_that_cannot_be_mounted_is_reported_with_the_remedy(
    node, source, path, words
):
    await node.restart(abilities=privileges.Abilities(mounts=True))
    sub_path = "../x" if words == "leads out" else ""
    await node.create(
        "true", volumes=[{"name": "v", **source}],
        volume_mounts=[mount("v", path, sub_path=sub_path)],
    )  # fmt: skip
    pod = await node.phase("Failed")
    assert pod.status.reason == "MountFailed"
    assert words in pod.status.message


@nodes.as_root
def test_a_link_inside_a_volume_does_not_lead_out_of_it(tmp_path):
    (tmp_path / "v").mkdir()
    (tmp_path / "v/link").symlink_to("/etc")
    for below in ("link", "link/ssl", "../x"):
        with pytest.raises(OSError, match=r"symbolic|Not a directory|leads out"):
            os.close(sandbox.open_below(str(tmp_path / "v"), below))


async def test_without_root_a_mount_elsewhere_is_refused(node):
    await node.create(
        "true", volumes=[{"name": "v", "emptyDir": {}}], volume_mounts=[mount("v", "/mnt")]
    )
    pod = await node.phase("Failed")
    assert pod.status.reason == "PodNotSupported"
    assert "needs root" in pod.status.message


async def test_without_root_two_volumes_at_one_place_are_refused(node):
    init = core.Container(
        name="i", image=nodes.HOST, command=["true"], volume_mounts=[mount("a", "/windlass/x")]
    )
    await node.create(
        "true", init_containers=[init], volume_mounts=[mount("b", "/windlass/x")],
        volumes=[{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {}}],
    )  # fmt: skip
    assert "two volumes" in (await node.phase("Failed")).status.message


def test_shared_memory_that_the_machine_has_not_is_refused():
    asked = {"name": "s", "emptyDir": {"medium": "Memory", "sizeLimit": "900Ti"}}
    container = core.Container(name="c", volume_mounts=[mount("s", "/dev/shm")])
    spec = core.PodSpec(containers=[container], volumes=[asked])
    told = volumes.too_little_shm(core.Pod(spec=spec))
    assert "asks for 900Ti" in told
    assert "remount" in told


def test_files_of_volumes_are_the_pods_and_closed_to_others(tmp_path):
    folder = volumes.PodFolder(tmp_path / "p", None, False, tmp_path / "teams")
    folder.make()
    for name in ("root", "containers"):
        assert stat.S_IMODE((folder.path / name).stat().st_mode) == 0o700
    assert folder.inside("/windlass/../etc") is None
    assert folder.mapped("/windlassing") == "/windlassing"
