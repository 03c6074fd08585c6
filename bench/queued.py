"""What `ps`, `why` and `submit` cost when ten runs wait, and when ten thousand do.

    python -m bench.queued [--json] [--quick]

Two servers of the same kind, side by side, asked in turns: each command is a process of its own, as
a person starts it. Wall and CPU of the command, and CPU of the server while it answers. The ratio
is ten thousand against ten: at most 2 is the aim. (Below 1 in `ratios` means that the long line
costs more; 0.5 is twice.)
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import report
from windlass.kinds.types import core
from windlass.kinds.types.meta import ObjectMeta
from windlass.sdk import run_builder
from windlass.store import connect

FEW, MANY = 10, 10_000
TICK = os.sysconf("SC_CLK_TCK")


class Server:
    """The API with its controllers; one node without an agent, so that all but one run wait."""

    def __init__(self, folder: Path, waiting: int) -> None:
        self.waiting = waiting
        self.folder = folder
        self._log = open(folder.with_suffix(".log"), "wb")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "windlass.server", "--state", str(folder)],
            stdout=self._log, stderr=self._log,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while not (folder / "server.json").exists():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise SystemExit(f"the server does not start; see {self._log.name}")
            time.sleep(0.05)
        asyncio.run(self._fill())

    async def _fill(self) -> None:
        store = connect.open_store(str(self.folder / "kubeconfig"))
        amounts: dict[str, Any] = {"cpu": "1", "memory": "64Gi", "pods": "110"}
        node = core.Node(metadata=ObjectMeta(name="n1"))
        made = await store.create(node)
        ready = [{"type": "Ready", "status": "True"}]
        status = {"allocatable": amounts, "capacity": amounts, "conditions": ready}
        await store.patch(core.Node, "n1", patch={"status": status}, subresource="status")
        del made
        gate = asyncio.Semaphore(16)

        async def submit(number: int) -> None:
            async with gate:
                run = run_builder.build(
                    ["true"], name=f"w{number:05}", namespace="default", cpus="1"
                )
                await store.create(run)

        try:
            await submit(0)
            await asyncio.gather(*(submit(number) for number in range(1, self.waiting + 1)))
        finally:
            await store.close()

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def settle(self) -> None:
        """Waits until the server is idle: pending status updates must not be counted."""
        deadline = time.monotonic() + 900
        while time.monotonic() < deadline:
            before = self.cpu()
            time.sleep(2.0)
            if self.cpu() - before < 0.2:
                return

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self._log.close()


def measure(options: report.Options) -> report.Report:
    many = 1000 if options.quick else MANY
    rounds = 5 if options.quick else 15
    found = report.Report()
    with tempfile.TemporaryDirectory(prefix="windlass-queued-") as folder:
        servers = [Server(Path(folder, str(n)), n) for n in (FEW, many)]
        try:
            for server in servers:
                _ask(server, "ps", 0)  # the first question loads the picture
                server.settle()
            costs: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
            for turn in range(rounds):
                for command in ("ps", "why", "submit"):
                    for server in servers:
                        taken = _ask(server, command, turn)
                        costs.setdefault((command, server.waiting), []).append(taken)
        finally:
            for server in servers:
                server.stop()
    for command in ("ps", "why", "submit"):
        medians = {}
        for waiting in (FEW, many):
            samples = costs[command, waiting]
            wall, cpu, server = (statistics.median(column) for column in zip(*samples, strict=True))
            medians[waiting] = (wall, cpu, server)
            found.rows.append(
                {"command": command, "waiting": waiting, "wall_ms": round(wall * 1000),
                 "cpu_ms": round(cpu * 1000), "server_cpu_ms": round(server * 1000)}
            )  # fmt: skip
        for at, what in enumerate(("wall", "command CPU")):
            found.ratios[f"{command}, {what}"] = report.ratio(medians[FEW][at], medians[many][at])
    return found


def _ask(server: Server, command: str, turn: int) -> tuple[float, float, float]:
    windlass = str(Path(sys.executable).with_name("windlass"))
    flags = ["--kubeconfig", str(server.folder / "kubeconfig")]
    argv = {
        "ps": [windlass, "ps", *flags],
        "why": [windlass, "why", *flags, f"w{server.waiting // 2:05}"],
        "submit": [windlass, "submit", *flags, "-n", f"extra{turn}", "--", "true"],
    }[command]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(report.cache() / "bench-bytecode")
    before = server.cpu()
    cost = report.run_process(argv, env)
    if cost.code:
        raise SystemExit(f"{' '.join(argv)} ended with {cost.code}")
    return cost.wall, cost.cpu, server.cpu() - before


if __name__ == "__main__":
    sys.exit(report.main("queued", __doc__ or "", measure))
