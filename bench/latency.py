"""How long a person waits for a job, and what a thousand short ones cost.

    python -m bench.latency [--json] [--quick] [--only NAME,...]

*First line*: from Enter to the first line that `print("first")` writes, in another process started
by `windlass run`, `ray job submit`, Metaflow, Dask and submitit, and by hand. *Submit to running*:
from the POST until the run says Running. *Short runs*: `true`, a thousand times. All in one run,
round by round, so that a busy moment of the machine hits all alike; engines that need a server
have theirs up before the clock starts, as a user would.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import windlass
from bench import report

WORD = "first"
SMALL: dict[str, Any] = {"cpus": "100m", "memory": "16Mi"}
RIVALS = {
    "ray": ("ray[default]",),
    "metaflow": ("metaflow",),
    "dask": ("dask", "distributed", "click"),
    "submitit": ("submitit",),
}
DASK = """
import subprocess, sys
from dask.distributed import Client, LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        client = Client(cluster)
        if sys.argv[1] == "first":
            done = client.submit(subprocess.check_output, [sys.executable, "-c", "print('first')"])
            print(done.result().decode(), flush=True)
        else:
            client.gather([client.submit(subprocess.call, ["true"], pure=False)
                           for _ in range(int(sys.argv[1]))])
"""
SUBMITIT = """
import subprocess, sys, tempfile
import submitit
with tempfile.TemporaryDirectory() as folder:
    executor = submitit.LocalExecutor(folder=folder)
    if sys.argv[1] == "first":
        run = [sys.executable, "-c", "print('first')"]
        print(executor.submit(subprocess.check_output, run).result().decode(), flush=True)
    else:
        jobs = [executor.submit(subprocess.call, ["true"]) for _ in range(int(sys.argv[1]))]
        [job.result() for job in jobs]
"""
METAFLOW = """
from metaflow import FlowSpec, step
class Flow(FlowSpec):
    @step
    def start(self):
        print("first", flush=True)
        self.next(self.end)
    @step
    def end(self):
        pass
if __name__ == "__main__":
    Flow()
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """How one system starts a process."""

    name: str
    first: list[str]
    """Prints the word, sooner or later."""
    many: Callable[[int], list[str]] | None = None
    """Runs `true` so many times."""
    most: int = 1000
    """How many of a thousand are worth the wait: the others are taken to be like these."""
    env: dict[str, str] | None = None
    warm: bool = False
    """Its first line was seen already."""


def measure(options: report.Options) -> report.Report:
    found = report.Report()
    report.keep_bytecode()
    rounds, runs = (2, 100) if options.quick else (15, 1000)
    chosen = set(filter(None, options.extra.only.split(",")))
    with tempfile.TemporaryDirectory(prefix="bench-latency-") as folder:
        place = Path(folder)
        with contextlib.ExitStack() as stack:
            engine = stack.enter_context(_engine(place / "state"))
            ways = [_by_hand(), _ours(engine)]
            ways += _rivals(place, stack, found, chosen)
            _first_lines(found, ways, rounds)
            _submit_to_running(found, engine, rounds)
            _short_runs(found, engine, ways, runs)
    return found


# --- from Enter to the first line


def _first_lines(found: report.Report, ways: Sequence[Way], rounds: int) -> None:
    seconds: dict[str, list[float]] = {way.name: [] for way in ways}
    for way in ways:
        if not way.warm:
            _first_line(way)  # compiles, warms caches
    for _ in range(rounds):
        for way in ways:
            seconds[way.name].append(_first_line(way))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, median in medians.items():
        found.rows.append({
            "what": "first line", "who": name, "ms": round(median * 1e3, 1),
            "over_by_hand_ms": round((median - medians["by hand"]) * 1e3, 1), "rounds": rounds,
        })  # fmt: skip
        if name not in ("by hand", "windlass"):
            found.ratios[f"first line vs {name}"] = report.ratio(median, medians["windlass"])


def _first_line(way: Way) -> float:
    begun = time.perf_counter()
    process = subprocess.Popen(
        way.first, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=way.env,
    )  # fmt: skip
    assert process.stdout is not None
    seen: float | None = None
    said = b""
    for line in process.stdout:
        said += line
        words = line.split()
        if seen is None and words and words[-1] == WORD.encode():
            seen = time.perf_counter() - begun
    process.wait()
    if seen is None:
        raise RuntimeError(f"{way.name} never printed {WORD!r}:\n{said.decode()[-2000:]}")
    return seen


# --- from the POST to Running


def _submit_to_running(found: report.Report, state: Path, rounds: int) -> None:
    async def once(client: windlass.AsyncClient) -> float:
        begun = time.perf_counter()
        handle = await client.run(["sleep", "0.2"], **SMALL)
        running: list[float] = []

        def look(current: Any) -> None:
            if not running and current.status.phase in ("Running", "Succeeded"):
                running.append(time.perf_counter() - begun)

        await handle.wait(60, look)
        await handle.delete()
        return running[0]

    async def all_of_them() -> list[float]:
        async with windlass.AsyncClient(state=state) as client:
            await once(client)
            return [await once(client) for _ in range(rounds)]

    median = statistics.median(asyncio.run(all_of_them()))
    found.rows.append({
        "what": "submit to running", "who": "windlass", "ms": round(median * 1e3, 1),
        "rounds": rounds,
    })  # fmt: skip


# --- a thousand short ones


def _short_runs(found: report.Report, state: Path, ways: Sequence[Way], runs: int) -> None:
    costs: dict[str, tuple[float, float]] = {}
    for way in ways:
        count = min(runs, max(1, way.most * runs // 1000))
        seconds, cpu = _their_many(way, count) if way.many is not None else _ours_many(state, count)
        costs[way.name] = seconds / count, cpu / count
        found.rows.append({
            "what": "short runs", "who": way.name, "runs": count,
            "runs_per_minute": round(count / seconds * 60, 1),
            "cpu_ms_per_run": round(cpu / count * 1e3, 2),
        })  # fmt: skip
        if count < runs:
            found.notes.append(f"{way.name}: {count} short runs stand for {runs}")
    plain = costs["windlass"][0]
    _compared(found, costs)
    seconds = _ours_array(state, runs)
    found.rows.append({
        "what": "short runs", "who": "windlass --array 0-N%50", "runs": runs,
        "runs_per_minute": round(runs / seconds * 60, 1),
    })  # fmt: skip
    found.ratios["indices of an array per minute vs runs"] = report.ratio(plain, seconds / runs)
    begun = time.perf_counter()
    with windlass.Client(state=state) as client, windlass.Executor(2, client=client, **SMALL) as e:
        list(e.map(abs, range(runs)))
    seconds = time.perf_counter() - begun
    found.rows.append({
        "what": "small calls", "who": "windlass.Executor", "runs": runs,
        "runs_per_minute": round(runs / seconds * 60, 1),
    })  # fmt: skip


def _compared(found: report.Report, costs: dict[str, tuple[float, float]]) -> None:
    ours = costs.pop("windlass")
    for name, theirs in costs.items():
        if name != "by hand":
            found.ratios[f"short runs per minute vs {name}"] = report.ratio(theirs[0], ours[0])
            if name != "ray":  # most of its CPU is its daemons', which are not counted
                found.ratios[f"CPU per short run vs {name}"] = report.ratio(theirs[1], ours[1])


def _ours_many(state: Path, count: int) -> tuple[float, float]:
    """As a sweep would do it: one program hands them all in and waits."""

    async def work() -> None:
        async with windlass.AsyncClient(state=state) as client:
            gate = asyncio.Semaphore(16)

            async def one(number: int) -> None:
                async with gate:
                    await client.run(["true"], name=f"short-{number}", keep="10m", **SMALL)

            left = {f"short-{number}" for number in range(count)}
            watch = asyncio.create_task(_all_ended(client, left))
            await asyncio.gather(*(one(number) for number in range(count)))
            await watch

    before, own = _used(state), time.process_time()
    begun = time.perf_counter()
    asyncio.run(work())
    seconds = time.perf_counter() - begun
    return seconds, _used(state) - before + time.process_time() - own


def _ours_array(state: Path, count: int) -> float:
    """The same number of jobs as the indices of one array, 50 at a time."""
    begun = time.perf_counter()
    with windlass.Client(state=state) as client:
        handle = client.run(["true"], name="short-array", array=f"0-{count - 1}%50", **SMALL)
        ended = handle.wait()
    if ended.status.phase != "Succeeded":
        raise RuntimeError(f"{ended.name}: {ended.status.message}")
    return time.perf_counter() - begun


async def _all_ended(client: windlass.AsyncClient, left: set[str]) -> None:
    async with contextlib.aclosing(client.watch("run")) as changes:
        async for _, current in changes:
            if current.finished:
                if current.status.phase != "Succeeded":
                    raise RuntimeError(f"{current.name}: {current.status.message}")
                left.discard(current.name)
                if not left:
                    return


def _their_many(way: Way, count: int) -> tuple[float, float]:
    assert way.many is not None
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    done = subprocess.run(
        way.many(count), stdin=subprocess.DEVNULL, capture_output=True, env=way.env, check=False
    )
    seconds = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{way.name}: {done.stderr.decode()[-2000:]}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _used(state: Path) -> float:
    """CPU seconds of the engine and all it started."""
    cpu = state / "cpu"
    cpu.unlink(missing_ok=True)
    os.kill(int((state / "holder").read_text()), signal.SIGUSR1)
    while not cpu.exists():
        time.sleep(0.01)
    return float(cpu.read_text())


# --- who


@contextlib.contextmanager
def _engine(state: Path) -> Iterator[Path]:
    state.mkdir()
    holder = subprocess.Popen([sys.executable, "-m", "bench.holder", str(state)])
    (state / "holder").write_text(str(holder.pid))
    try:
        deadline = time.monotonic() + 120
        while not _ready(state):
            if holder.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((state / "up.log").read_text()[-2000:])
            time.sleep(0.1)
        yield state
    finally:
        _end(holder)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(30)
    process.kill()
    process.wait()


def _ready(state: Path) -> bool:
    if not (state / "server.json").exists():
        return False
    try:
        with windlass.Client(state=state) as client:
            return bool(client.nodes.list())
    except (windlass.errors.ApiError, OSError):
        return False


def _by_hand() -> Way:
    loop = "import subprocess, sys\nfor _ in range(int(sys.argv[1])): subprocess.call(['true'])"
    return Way(
        "by hand",
        [sys.executable, "-c", f"print({WORD!r})"],
        lambda count: [sys.executable, "-c", loop, str(count)],
    )


def _ours(state: Path) -> Way:
    program = [str(Path(sys.executable).with_name("windlass")), "run", "--state", str(state)]
    job = ["--cpus", "100m", "--memory", "16Mi", "--", sys.executable, "-c", f"print({WORD!r})"]
    return Way("windlass", [*program, *job])


def _rivals(
    place: Path, stack: contextlib.ExitStack, found: report.Report, chosen: set[str]
) -> list[Way]:
    makers = {"ray": _ray, "metaflow": _metaflow, "dask": _dask, "submitit": _submitit}
    ways = []
    for name, maker in makers.items():
        if chosen and name not in chosen:
            continue
        try:
            folder = report.rival_environment(name, RIVALS[name])
            ways.append(maker(folder, place, stack))
        except (RuntimeError, subprocess.SubprocessError) as problem:
            found.notes.append(f"{name} is missing: {problem}")
    return ways


def _repeated(command: list[str], count: int) -> list[str]:
    """The command so many times, one after the other: it takes one job at a time."""
    return ["sh", "-c", f'for _ in $(seq {count}); do "$@" || exit 1; done', "sh", *command]


def _script(place: Path, name: str, text: str) -> str:
    path = place / f"{name}.py"
    path.write_text(text)
    return str(path)


def _dask(folder: Path, place: Path, _: contextlib.ExitStack) -> Way:
    command = [str(folder / "python"), _script(place, "dask_bench", DASK)]
    return Way("dask", [*command, "first"], lambda count: [*command, str(count)])


def _submitit(folder: Path, place: Path, _: contextlib.ExitStack) -> Way:
    command = [str(folder / "python"), _script(place, "submitit_bench", SUBMITIT)]
    return Way("submitit", [*command, "first"], lambda count: [*command, str(count)], most=30)


def _metaflow(folder: Path, place: Path, _: contextlib.ExitStack) -> Way:
    home = place / "metaflow"
    home.mkdir()
    env = os.environ | {
        "METAFLOW_HOME": str(home), "METAFLOW_DATASTORE_SYSROOT_LOCAL": str(home),
        "METAFLOW_USER": "bench", "USERNAME": "bench",
    }  # fmt: skip
    script = _script(place, "metaflow_bench", METAFLOW)
    command = [str(folder / "python"), script, "--no-pylint", "run"]
    return Way("metaflow", command, lambda count: _repeated(command, count), most=10, env=env)


def _ray(folder: Path, place: Path, stack: contextlib.ExitStack) -> Way:
    ray = str(folder / "ray")
    env = os.environ | {"RAY_TMPDIR": str(place), "RAY_USAGE_STATS_ENABLED": "0"}
    start = [ray, "start", "--head", "--dashboard-port", "9265", "--port", "9379"]
    start += [
        "--num-cpus",
        "2",
        "--disable-usage-stats",
        "--temp-dir",
        str(place / "ray"),
        "--block",
    ]
    # Not `ray stop`, which would end every ray of this machine.
    head = subprocess.Popen(start, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(_end, head)
    job = [ray, "job", "submit", "--address", "http://127.0.0.1:9265", "--"]
    # Of its CPU only the command's own is counted; what its daemons use is not.
    many = [*job, "true"]
    first = [*job, sys.executable, "-c", f"print({WORD!r})"]
    way = Way("ray", first, lambda count: _repeated(many, count), 5, env, warm=True)
    deadline = time.monotonic() + 120
    while True:  # its dashboard comes up a while after `ray start` has returned
        try:
            _first_line(way)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)
        else:
            return way


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", default="", help="only these rivals, with commas between them")


if __name__ == "__main__":
    sys.exit(report.main("latency", __doc__ or "", measure, configure))
