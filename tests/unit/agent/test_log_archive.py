"""Logs that outlive their pods: what is kept, how much, and for how long."""

import shutil
import types

import pytest

from tests.unit.agent import nodes
from windlass.agent.runtime import containers, procfs
from windlass.kinds.types import core, meta, run
from windlass.podlogs import archive
from windlass.server.storage.logs_disk import DiskLogStore
from windlass.store import errors

ASKED = types.SimpleNamespace(
    container="", follow=False, previous=False, timestamps=False, since_seconds=None,
    since_time="", tail_lines=None, limit_bytes=None,
)  # fmt: skip
TALK = (
    "trap 'echo last words; exit 0' TERM; echo hello; touch {here}/up; while :; do sleep .05; done"
)


def pod_of(uid="run-1", role="worker", index="0", command="true", **more):
    labels = {
        run.LABEL_RUN: "train", run.LABEL_ATTEMPT: "2", run.LABEL_ROLE: role,
        run.LABEL_INDEX: index,
    }  # fmt: skip
    owner = meta.OwnerReference(
        api_version="windlass.dev/v1alpha1", kind="Run", name="train", uid=uid
    )
    container = core.Container(name="c", image=nodes.HOST, command=["sh", "-c", command])
    return core.Pod(
        metadata=meta.ObjectMeta(
            name="p", namespace="team", labels=labels | more, owner_references=[owner]
        ),
        spec=core.PodSpec(
            node_name="n1", containers=[container], restart_policy="Never",
            termination_grace_period_seconds=30,
        ),
    )  # fmt: skip


async def made(store, name: str) -> str:
    """The uid of a Run of that name."""
    spec = run.RunSpec(roles=[run.Role(command=["true"])])
    created = await store.create(
        run.Run(metadata=meta.ObjectMeta(name=name, namespace="team"), spec=spec)
    )
    return created.uid


@pytest.fixture
async def keeping(node):
    await node.restart(log_archive=archive.LogArchive(node.folder / archive.FOLDER))
    return node


@pytest.fixture
async def uid(node):
    return await made(node.store, "train")


async def said(node, uid, **asked) -> list[str]:
    gateway = DiskLogStore(node.folder / archive.FOLDER)
    texts = []
    for told in await gateway.list_logs("team", uid):
        options = types.SimpleNamespace(**(vars(ASKED) | asked))
        pieces = [p async for p in gateway.read_log("team", uid, told["name"], options)]
        texts.append(b"".join(pieces).decode())
    return texts


@pytest.mark.parametrize("grace", [None, 0], ids=["stopped", "by force"])
async def test_what_a_member_printed_stays_when_its_pod_goes(keeping, uid, grace):
    command = TALK.replace("{here}", str(keeping.folder))
    await keeping.store.create(pod_of(uid, command=command))
    await keeping.there(keeping.folder / "up")
    pod = await keeping.phase("Running")
    await keeping.store.delete(core.Pod, "p", "team", grace_seconds=grace)
    await keeping.gone(keeping.folder / "pods" / pod.uid)
    expected = "hello\n" if grace == 0 else "hello\nlast words\n"
    assert await said(keeping, uid) == [expected]
    assert await said(keeping, uid, tail_lines=1) == [expected.splitlines(keepends=True)[-1]]
    (told,) = archive.listing(keeping.folder / archive.FOLDER, "team", uid)
    assert (told["attempt"], told["role"], told["index"]) == (2, "worker", 0)
    assert (told["pod"], told["uid"]) == ("p", pod.uid)
    assert told["startedAt"] <= told["finishedAt"] <= told["keptAt"]


async def test_logs_are_kept_before_the_pods_object_goes(keeping, uid):
    command = f"echo done; touch {keeping.folder}/up; exec sleep 100"
    await keeping.store.create(pod_of(uid, command=command))
    await keeping.there(keeping.folder / "up")
    pod = await keeping.phase("Running")
    there = []
    delete = keeping.store.delete

    async def watched(*arguments, **more):
        there.append(await said(keeping, uid))
        return await delete(*arguments, **more)

    keeping.store.delete = watched
    await delete(core.Pod, "p", "team")
    await keeping.gone(keeping.folder / "pods" / pod.uid)
    assert there == [["done\n"]]


async def test_other_peoples_pods_are_not_kept(keeping):
    await keeping.create("echo mine")
    pod = await keeping.phase("Succeeded")
    await keeping.store.delete(core.Pod, "p", "team")
    await keeping.gone(keeping.folder / "pods" / pod.uid)
    assert not (keeping.folder / archive.FOLDER).exists()


@pytest.mark.parametrize(
    "strange", [{"uid": "../../x"}, {"uid": ""}, {"role": ".."}, {"index": "-1"}, {"index": "x"}]
)
def test_a_pod_with_strange_names_leads_nowhere(strange):
    assert archive.member_of(pod_of(**strange)) is None


# --- on the disk alone


def ended(tmp_path, uid: str, text: str = "hello", run_uid: str = "run-1"):
    """The folder of a pod whose container has ended, its record and its logs."""
    folder = tmp_path / "pods" / uid
    start = folder / "containers" / "c" / "0"
    start.mkdir(parents=True)
    for number in (3, 4):
        (start / f"log.{number}").write_text(f"2026-01-01T00:00:01.000000Z stdout F {text}\n")
    times = {"startedAt": "a", "finishedAt": "b"}
    over = {"exitCode": 0, "reason": "Completed", "message": "", **times}
    procfs.write_durably(start / "exit.json", over)
    member = {"run": run_uid, "attempt": 0, "role": "worker", "index": 0, "container": "c"}
    record = {"namespace": "team", "name": f"pod-{uid}", "member": member}
    return folder, record, containers.logs_in(folder)


def test_an_agent_that_was_killed_on_the_way_is_finished_by_the_next(tmp_path):
    root = tmp_path / "kept"
    folder, record, logs = ended(tmp_path, "u1")
    archive.LogArchive(root).add(folder, record, logs)
    (entry,) = (root / "team" / "run-1").iterdir()
    (entry / archive.RECORD).unlink()
    (entry / "c" / "log.4").unlink()
    assert archive.listing(root, "team", "run-1") == []
    again = archive.LogArchive(root)
    again.add(folder, record, logs)
    again.add(folder, record, logs)
    shutil.rmtree(folder)
    assert [told["name"] for told in archive.listing(root, "team", "run-1")] == ["0-worker-0-u1"]
    found = archive.log_folder(root, "team", "run-1", "0-worker-0-u1")
    assert sorted(path.name for path in found.iterdir()) == ["log.3", "log.4"]


def test_a_namespace_keeps_so_many_bytes_and_the_oldest_go_first(tmp_path):
    root = tmp_path / "kept"
    folders = [ended(tmp_path, f"u{n}", "x" * 30_000, f"run-{n}") for n in range(5)]
    most = 3 * 70_000
    keeper = archive.LogArchive(root, most)
    for pod in folders:
        keeper.add(*pod)
    left = [n for n in range(5) if archive.listing(root, "team", f"run-{n}")]
    assert left == [2, 3, 4]
    archive.LogArchive(root, most).add(
        *ended(tmp_path, "u9", "x" * 30_000, "run-9")
    )  # another agent
    assert [n for n in range(10) if archive.listing(root, "team", f"run-{n}")] == [3, 4, 9]


def test_a_disk_that_takes_no_more_does_not_hold_the_pod(tmp_path, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive.os, "link", full)
    archive.LogArchive(tmp_path / "kept").add(*ended(tmp_path, "u1"))
    assert "pod-u1 are not archived: [Errno 28]" in caplog.text
    assert archive.listing(tmp_path / "kept", "team", "run-1") == []


@pytest.mark.parametrize(
    ("name", "container"), [("other", ""), ("..", ""), ("0-worker-0-u1", ".."), ("../run-1", "c")]
)
async def test_no_name_leads_out_of_what_is_kept(tmp_path, name, container):
    archive.LogArchive(tmp_path / "kept").add(*ended(tmp_path, "u1"))
    asked = types.SimpleNamespace(**(vars(ASKED) | {"container": container}))
    with pytest.raises(errors.NotFound):
        await anext(DiskLogStore(tmp_path / archive.FOLDER).read_log("team", "run-1", name, asked))


async def test_what_is_kept_goes_after_its_run(node):
    root = node.folder / "kept"
    uid = await made(node.store, "r")
    archive.LogArchive(root).add(*ended(node.folder / "x", "u1", run_uid=uid))
    archive.LogArchive(root).add(*ended(node.folder / "x", "u2", run_uid="gone"))
    await archive.sweep(root, node.store)
    assert [path.name for path in (root / "team").iterdir()] == [uid]
    await node.store.delete(run.Run, "r", "team")
    await archive.sweep(root, node.store)
    assert list(root.iterdir()) == []


async def test_logs_of_an_index_are_kept_as_long_as_its_array(node):
    array = await made(node.store, "sweep")
    member = archive.member_of(
        pod_of("run-of-index-7", **{run.LABEL_ARRAY_UID: array, run.LABEL_ARRAY_INDEX: "7"})
    )
    assert member["run"] == archive.key_of(array, 7)
    root = node.folder / archive.FOLDER
    for key in (member["run"], archive.key_of("another", 7)):
        folder = root / "team" / key / "0-worker-0-x" / "c"
        folder.mkdir(parents=True)
    await archive.sweep(root, node.store)
    assert [each.name for each in (root / "team").iterdir()] == [f"{array}.7"]


def test_a_strange_array_label_leads_nowhere():
    strange = {run.LABEL_ARRAY_UID: "../../etc", run.LABEL_ARRAY_INDEX: "7"}
    assert archive.member_of(pod_of(**strange)) is None
    plain = {run.LABEL_ARRAY_UID: "uid", run.LABEL_ARRAY_INDEX: "../x"}
    assert archive.member_of(pod_of(**plain))["run"] == "run-1"
