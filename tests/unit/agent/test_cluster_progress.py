"""Progress on a cluster while the API server does not answer: the file is read all the same. How it
goes with a real one that is cut off: tests/endtoend/test_agent_partition.py."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from windlass.agent import changes, cluster, held
from windlass.kinds import kubernetes, meta


class Slow(cluster.Agent):
    """One pod, and an API server that answers when it is told to."""

    def __init__(self, folder: Path) -> None:
        store: Any = None
        super().__init__(store, "n1", held.Held(folder / "state", folder / "logs"), folder)
        self.pod = kubernetes.Pod(
            metadata=meta.ObjectMeta(name="job", namespace="team", uid="u1"),
            spec=kubernetes.PodSpec(
                containers=[], security_context={"runAsUser": os.geteuid()}
            ),
        )  # fmt: skip
        self.pod.status.phase = "Running"
        self.asked, self.answers = asyncio.Event(), asyncio.Event()
        self.written: list[str] = []

    def _pod(self, uid: str) -> kubernetes.Pod | None:
        return self.pod if uid == self.pod.uid else None

    async def _annotate(self, pod: kubernetes.Pod, name: str, told: str) -> bool:
        self.asked.set()
        await self.answers.wait()
        self.written.append(told)
        return True


async def test_the_last_report_is_read_before_kubelet_removes_it_though_nobody_answers(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "pods/u1/volumes/kubernetes.io~empty-dir/run"
    folder.mkdir(parents=True)
    file = folder / "progress.json"
    file.write_text('{"fraction": 0.5}')
    agent = Slow(tmp_path)
    noticing = changes.Changes()
    carrying = asyncio.create_task(agent._carry_progress("u1", noticing))
    async with asyncio.timeout(60):
        await agent.asked.wait()
        file.write_text('{"fraction": 1.0}')
        await seen(noticing, folder)
        file.unlink()
        agent.pod.status.phase = "Succeeded"
        agent.answers.set()
        await carrying
    noticing.close()
    assert json.loads(agent.written[-1]) == {"fraction": 1.0}


async def seen(noticing: changes.Changes, folder: Path) -> None:
    """Until whoever reads the folder has had his turn: two looks of our own after a change."""
    with noticing.watching(folder) as own:
        for _ in range(2):
            own.clear()
            (folder / "another").write_text("x")
            await own.wait()
            await asyncio.sleep(2 * cluster._GATHER)
