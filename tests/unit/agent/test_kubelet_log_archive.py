"""Logs of a cluster's pods: held by links while kubelet rotates and removes, kept by a server."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from windlass.agent.daemonset import kubelet_log_archive
from windlass.kinds.types import core, meta, run
from windlass.podlogs import archive

LINE = "2026-01-01T00:00:00.000000000Z stdout F "


def pod(uid: str = "u1") -> core.Pod:
    owner = meta.OwnerReference(
        api_version="windlass.dev/v1alpha1", kind="Run", name="job", uid="r1", controller=True
    )
    labels = {
        run.LABEL_RUN: "job",
        run.LABEL_ATTEMPT: "0",
        run.LABEL_ROLE: "worker",
        run.LABEL_INDEX: "1",
    }
    return core.Pod(
        metadata=meta.ObjectMeta(
            name="job-1", namespace="team", uid=uid, labels=labels, owner_references=[owner]
        ),
        spec=core.PodSpec(containers=[core.Container(name="worker")]),
    )


@pytest.fixture
def place(tmp_path: Path) -> tuple[kubelet_log_archive.KubeletLogArchive, Path]:
    source = tmp_path / "pods" / "team_job-1_u1" / "worker"
    source.mkdir(parents=True)
    return kubelet_log_archive.KubeletLogArchive(tmp_path / "held", tmp_path / "pods"), source


def text(logs: kubelet_log_archive.KubeletLogArchive) -> list[str]:
    (entry,) = logs.entries()
    whole = "".join(path.read_text() for _, _, path in entry.segments)
    return [line.removeprefix(LINE) for line in whole.splitlines()]


def test_what_is_written_after_the_link_is_held_too_and_outlives_kubelets_files(place):
    logs, source = place
    with (source / "0.log").open("w") as file:
        print(LINE + "one", file=file, flush=True)
        logs.link(pod())
        print(LINE + "two", file=file, flush=True)
    shutil.rmtree(source.parent)
    assert text(logs) == ["one", "two"]


def test_rotation_moves_nothing_and_repeats_nothing(place):
    logs, source = place
    (source / "0.log").write_text(LINE + "one\n")
    logs.link(pod())
    (source / "0.log").rename(source / "0.log.20260101-000001")
    (source / "0.log").write_text(LINE + "two\n")
    logs.link(pod())
    packed = source / "0.log.20260101-000001.gz"
    packed.write_bytes(gzip.compress((source / "0.log.20260101-000001").read_bytes()))
    (source / "0.log.20260101-000001").unlink()
    logs.link(pod())
    assert text(logs) == ["one", "two"]


def test_a_late_pod_unpacks_the_packed_environment(place):
    logs, source = place
    (source / "0.log.20260101-000001.gz").write_bytes(gzip.compress((LINE + "one\n").encode()))
    (source / "0.log").write_text(LINE + "two\n")
    logs.link(pod())
    logs.link(pod())
    assert text(logs) == ["one", "two"]


def test_only_runs_are_held_and_only_the_last_start(place):
    logs, source = place
    (source / "0.log").write_text(LINE + "first\n")
    (source / "1.log").write_text(LINE + "second\n")
    stranger = pod()
    stranger.metadata.owner_references = None
    logs.link(stranger)
    assert logs.entries() == []
    logs.link(pod())
    assert text(logs) == ["second"]
    (entry,) = logs.entries()
    entry.drop()
    assert logs.entries() == []


def test_a_server_takes_pieces_and_lists_them_when_they_are_whole(tmp_path):
    server = archive.LogArchive(tmp_path)
    name = "0-worker-1-u1"
    place = archive.Segment("team", "r1", name, "worker", 0)
    server.take_segment(place, (LINE + "one\n").encode())
    assert archive.listing(tmp_path, "team", "r1") == []
    record = {
        "run": "r1", "attempt": 0, "role": "worker", "index": 1, "container": "worker",
        "pod": "job-1", "uid": "u1", "keptAt": "2026-01-01T00:00:00Z", "bytes": 4, "more": "",
    }  # fmt: skip
    server.take_record("team", "r1", name, json.dumps(record).encode())
    (told,) = archive.listing(tmp_path, "team", "r1")
    assert (told["name"], told["pod"], told["attempt"]) == (name, "job-1", 0)
    assert archive.log_folder(tmp_path, "team", "r1", name).name == "worker"


@pytest.mark.parametrize("part", ["..", "a/b", "", ".hidden"])
def test_names_that_lead_elsewhere_are_refused(tmp_path, part):
    server = archive.LogArchive(tmp_path)
    for place in (
        archive.Segment(part, "r1", "n", "c", 0),
        archive.Segment("team", part, "n", "c", 0),
        archive.Segment("team", "r1", part, "c", 0),
        archive.Segment("team", "r1", "n", part, 0),
        archive.Segment("team", "r1", "n", "c", -1),
    ):
        with pytest.raises(ValueError, match=r".*"):
            server.take_segment(place, b"")
    assert list(tmp_path.iterdir()) == []


def test_when_it_was_kept_is_the_same_however_often_it_is_sent(place, tmp_path):
    logs, source = place
    (source / "0.log").write_text(LINE + "one\n")
    logs.link(pod())
    (entry,) = logs.entries()
    again = kubelet_log_archive.KubeletLogArchive(tmp_path / "held", tmp_path / "pods").entries()
    assert [each.at for each in again] == [entry.at]
