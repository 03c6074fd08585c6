"""Progress on a cluster while the API server does not answer: the file is read all the same. How it
goes with a real one that is cut off: tests/endtoend/test_agent_partition.py."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from windlass.agent.daemonset import kubelet_log_archive, main
from windlass.kinds.types import core, meta
from windlass.podlogs import inotify


class Slow(main.DaemonSetAgent):
    """One pod, and an API server that answers on command."""

    def __init__(self, folder: Path) -> None:
        store: Any = None
        super().__init__(
            store,
            "n1",
            kubelet_log_archive.KubeletLogArchive(folder / "state", folder / "logs"),
            folder,
        )
        self.pod = core.Pod(
            metadata=meta.ObjectMeta(name="job", namespace="team", uid="u1"),
            spec=core.PodSpec(
                containers=[], security_context={"runAsUser": os.geteuid()}
            ),
        )  # fmt: skip
        self.pod.status.phase = "Running"
        self.asked, self.answers = asyncio.Event(), asyncio.Event()
        self.written: list[str] = []

    def _pod(self, uid: str) -> core.Pod | None:
        return self.pod if uid == self.pod.uid else None

    async def _annotate(self, pod: core.Pod, name: str, told: str) -> bool:
        self.asked.set()
        await self.answers.wait()
        self.written.append(told)
        return True


async def test_the_last_report_is_read_before_kubelet_removes_it_though_the_server_does_not_answer(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "pods/u1/volumes/kubernetes.io~empty-dir/run"
    folder.mkdir(parents=True)
    file = folder / "progress.json"
    file.write_text('{"fraction": 0.5}')
    agent = Slow(tmp_path)
    folders = inotify.Inotify()
    carrying = asyncio.create_task(agent._publish_progress("u1", folders))
    async with asyncio.timeout(60):
        await agent.asked.wait()
        file.write_text('{"fraction": 1.0}')
        await seen(folders, folder)
        file.unlink()
        agent.pod.status.phase = "Succeeded"
        agent.answers.set()
        await carrying
    folders.close()
    assert json.loads(agent.written[-1]) == {"fraction": 1.0}


async def seen(folders: inotify.Inotify, folder: Path) -> None:
    """Until the reader of the folder has had its turn: two looks of our own after a change."""
    with folders.watching(folder) as own:
        for _ in range(2):
            own.clear()
            (folder / "another").write_text("x")
            await own.wait()
            await asyncio.sleep(2 * main._GATHER)
