"""Outputs that a run declares outlive its replicas: collected at its end, when it fails or is
stopped, and at checkpoints, within the quota of the team."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import windlass
from tests.endtoend.engines import Embedded, said
from tests.harness.waiting import until
from windlass.kinds.annotations import OUTPUTS_QUOTA, PINNED
from windlass.sdk.files.places import PathError

SMALL: dict[str, Any] = {"cpus": "100m", "memory": "128Mi"}
WRITE = (
    "mkdir -p out/deep; echo one > out/1.txt; echo two > out/deep/2.txt; ln -s 1.txt out/latest; "
    "ln -s /etc/passwd out/absolute; echo secret > private; cp out/1.txt out/same; "
)
SAVE = """
import pathlib, windlass
windlass.save({"loss": 0.5}, "metrics")
windlass.save(b"raw", "folder/raw")
windlass.save(pathlib.Path("save.py"), "source")
"""


def paths(handle: windlass.RunHandle) -> dict[str, str]:
    return {each.path: each.replica for each in handle.outputs()}


def test_outputs_are_there_when_the_run_has_ended(client: windlass.Client, tmp_path: Path) -> None:
    handle = client.run(
        ["sh", "-c", WRITE + "echo $WINDLASS_INDEX > mine"], workers=2,
        outputs=["out/**/*.txt", "out/latest", "out/same", "mine", "none"], **SMALL,
    )  # fmt: skip
    ended = handle.wait(120)
    assert ended.status.phase == "Succeeded", handle.why()
    assert sorted((each.replica, each.path) for each in handle.outputs()) == [
        (f"worker-{index}", path)
        for index in range(2)
        for path in ("mine", "out/1.txt", "out/deep/2.txt", "out/latest", "out/same")
    ]
    found = {each.path: each for each in handle.outputs() if each.replica == "worker-0"}
    assert found["out/1.txt"].digest == found["out/same"].digest
    assert found["out/latest"].target == "1.txt"
    collected = (ended.status.outputs or {})["worker-1"]
    assert (collected.moment, collected.files, collected.message) == ("end", 5, "")

    report = handle.download_outputs(tmp_path / "all")
    assert report.files == 8
    assert (tmp_path / "all/worker-1/mine").read_text() == "1\n"
    assert (tmp_path / "all/worker-0/out/latest").read_text() == "one\n"
    for pod in client.list("pod", labels=f"windlass.dev/run={handle.name}"):
        client.delete("pod", pod.name)
    until(lambda: not client.list("pod", labels=f"windlass.dev/run={handle.name}"), "pods are gone")
    handle.download("out/deep", tmp_path / "deep", replica="worker-1")
    assert (tmp_path / "deep/2.txt").read_text() == "two\n"
    with pytest.raises(PathError, match="there is no private"):
        handle.download("private", tmp_path)


def test_objects_that_a_job_saves_are_loaded_from_the_run(
    client: windlass.Client, tmp_path: Path
) -> None:
    (tmp_path / "save.py").write_text(SAVE)
    handle = client.run(["python3", "save.py"], workdir=tmp_path, outputs=["nothing"], **SMALL)
    assert handle.wait(120).status.phase == "Succeeded", handle.why()
    assert windlass.load(handle, "metrics", client=client) == {"loss": 0.5}
    assert handle.load("folder/raw") == b"raw"
    assert windlass.load(handle.name, "source", client=client).decode() == SAVE
    with pytest.raises(PathError, match="has saved no 'other'"):
        handle.load("other")


def test_a_job_loads_what_another_run_of_its_team_saved(
    client: windlass.Client, tmp_path: Path
) -> None:
    (tmp_path / "save.py").write_text(SAVE)
    (tmp_path / "load.py").write_text(
        "import sys, windlass\n"
        "print(windlass.load(sys.argv[1], 'metrics'), windlass.load(sys.argv[1], 'folder/raw'))\n"
        "try:\n    windlass.load(sys.argv[1], 'other')\n"
        "except LookupError as problem:\n    print(problem)\n"
    )
    words: dict[str, Any] = {"workdir": tmp_path, "outputs": ["nothing"], **SMALL}
    saver = client.run(["python3", "save.py"], **words)
    assert saver.wait(120).status.phase == "Succeeded", saver.why()
    loader = client.run(["python3", "load.py", saver.name], **words)
    assert said(loader) == [
        "{'loss': 0.5} b'raw'",
        f"run {saver.name} has saved no 'other'; list what it saved: windlass outputs list "
        f"{saver.name}",
    ]


def test_what_is_collected_depends_on_how_the_command_ended(client: windlass.Client) -> None:
    outputs = ["out/1.txt:end", "out/deep:failure", "out/same:checkpoint"]
    good = client.run(["sh", "-c", WRITE], outputs=outputs, **SMALL)
    bad = client.run(["sh", "-c", WRITE + "exit 4"], outputs=outputs, **SMALL)
    assert good.wait(120).status.phase == "Succeeded"
    ended = bad.wait(120).status
    assert (ended.phase, ended.reason, ended.exit_code) == ("Failed", "CodeFailed", 4)
    assert set(paths(good)) == {"out/1.txt", "out/same"}
    assert set(paths(bad)) == {"out/deep/2.txt", "out/same"}
    assert (bad.status.outputs or {})["worker-0"].moment == "failure"


def test_a_checkpoint_is_collected_while_the_program_goes_on(
    client: windlass.Client, tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(
        "import pathlib, signal, sys, time, windlass\n"
        "def stop(*_):\n"
        "    pathlib.Path('state').write_text('stopped'); sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "pathlib.Path('state').write_text('first')\n"
        "windlass.report(0.5, checkpointed=True)\n"
        "print('reported', flush=True)\n"
        "time.sleep(600)\n"
    )
    handle = client.run(
        ["python3", "job.py"], workdir=tmp_path, outputs=["state:checkpoint"], **SMALL
    )
    try:
        until(lambda: paths(handle) == {"state": "worker-0"}, "the checkpoint is collected", 120)
        assert handle.status.phase == "Running"
        assert (handle.status.outputs or {})["worker-0"].moment == "checkpoint"
    finally:
        handle.stop()
    assert handle.wait(120).status.phase == "Stopped"
    handle.download("state", tmp_path / "final")
    assert (tmp_path / "final").read_text() == "stopped", "collected again when it was stopped"


def test_above_the_quota_the_run_succeeds_and_why_says_what_is_missing(
    engine: Embedded, client: windlass.Client
) -> None:
    path = "/api/v1/namespaces/default"
    engine.write("PATCH", path, {"metadata": {"annotations": {OUTPUTS_QUOTA: "1Mi"}}})
    try:
        handle = client.run(
            ["sh", "-c", "head -c 2000000 /dev/zero > big"], outputs=["big"], **SMALL
        )
        assert handle.wait(120).status.phase == "Succeeded"
        assert not handle.outputs()
        text = handle.why()
        assert "above its quota of 1.0 MiB" in text
        assert "windlass outputs quota" in text
        events = [each.message for each in client.events.list(handle.name)]
        assert any("above its quota" in message for message in events)
    finally:
        engine.write("PATCH", path, {"metadata": {"annotations": {OUTPUTS_QUOTA: None}}})


def test_a_pinned_run_outlives_its_time(engine: Embedded, client: windlass.Client) -> None:
    where = "/apis/windlass.dev/v1alpha1/namespaces/default/runs/"
    both = [
        client.run(["sh", "-c", WRITE], name=name, outputs=["out"], keep="3s", **SMALL)
        for name in ("pinned", "other")
    ]
    pin: dict[str, Any] = {"metadata": {"annotations": {PINNED: "true"}}}
    engine.write("PATCH", f"{where}pinned", pin)
    until(lambda: "other" not in {h.name for h in client.runs.list()}, "the other is gone", 120)
    assert "out/1.txt" in paths(both[0])
    pin["metadata"]["annotations"][PINNED] = None
    engine.write("PATCH", f"{where}pinned", pin)
    until(lambda: "pinned" not in {h.name for h in client.runs.list()}, "it is gone", 120)
