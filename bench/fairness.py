"""Latency of a quiet user of the API beside five abusive ones, against alone.

    python -m bench.fairness [--json] [--quick]

The embedded server runs with its controllers in its own process. The quiet user reads, lists,
creates and deletes small objects, one request at a time. The abusive users are members of teams of
their own, in a second process: a flood of requests, a thousand watches, two thousand runs, large
lists, and bodies that are slow to parse. They run niced, as on other machines. The ratio is p99
alone to p99 beside them: 1 means that the quiet user notices nothing, the aim is 0.5 or more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import multiprocessing
import os
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from bench import report
from tests.faults.driver import Door
from tests.harness.embedded import EmbeddedServer

QUIET = "quiet"
_TOKENS = "/apis/platform.windlass.dev/v1alpha1/tokens"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_PAUSE = 0.02
"""Between two requests of the quiet user."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    seconds: float
    watches: int = 1000
    runs: int = 2000
    listed: int = 500
    connections: int = 64


FULL = Sizes(30.0)
QUICK = Sizes(8.0)


@dataclasses.dataclass(frozen=True)
class User:
    """A member of the team of the same name."""

    name: str
    url: str
    token: str
    authority: str

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Client]:
        context = ssl.create_default_context(cadata=self.authority)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=context),
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=aiohttp.ClientTimeout(total=None),
        ) as opened:
            yield Client(opened, self.url, self.name)


@dataclasses.dataclass(frozen=True)
class Client:
    session: aiohttp.ClientSession
    url: str
    team: str

    @property
    def maps(self) -> str:
        return f"/api/v1/namespaces/{self.team}/configmaps"

    @property
    def runs(self) -> str:
        return f"/apis/windlass.dev/v1alpha1/namespaces/{self.team}/runs"

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> int:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"} | headers
        async with self.session.request(method, self.url + path, data=data, headers=kind) as answer:
            await answer.read()
            return answer.status


# --- abusive users ------------------------------------------------------------------------------


async def flood(client: Client, sizes: Sizes) -> None:
    """Reads, as fast as they are answered."""
    await client.call("POST", client.maps, _config_map("mine"))
    await _forever(sizes.connections, lambda _: client.call("GET", f"{client.maps}/mine"))


async def watch(client: Client, sizes: Sizes) -> None:
    """Watches, and an object that changes for all of them."""
    await client.call("POST", client.maps, _config_map("mine"))

    async def one() -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                address = f"{client.url}{client.maps}?watch=1"
                async with client.session.get(address) as answer:
                    async for _ in answer.content:
                        pass
            await asyncio.sleep(1.0)  # as long as Retry-After says

    async def change() -> None:
        for number in range(10**9):
            patch = {"data": {"number": str(number)}}
            kind = {"Content-Type": "application/merge-patch+json"}
            await client.call("PATCH", f"{client.maps}/mine", patch, **kind)

    await asyncio.gather(change(), *(one() for _ in range(sizes.watches)))


async def submit(client: Client, sizes: Sizes) -> None:
    """Runs that no machine has the devices for."""
    role = {"name": "worker", "replicas": 2, "command": ["true"], "resources": {"gpu": 8}}

    async def one(number: int) -> None:
        if number < sizes.runs:
            body = {"metadata": {"name": f"run-{number}"}, "spec": {"roles": [role]}}
            await client.call("POST", client.runs, body)
        else:
            await client.call("GET", f"{client.runs}?limit=100")

    await _forever(16, one)


async def listing(client: Client, sizes: Sizes) -> None:
    """Large lists."""
    for number in range(sizes.listed):
        await client.call("POST", client.maps, _config_map(f"map-{number}"))
    await _forever(16, lambda _: client.call("GET", client.maps))


async def parse(client: Client, _: Sizes) -> None:
    """Bodies that take long to parse, and are refused in the end."""
    strict = b'{"metadata":{"name":"a","name":"b"},"data":{%b}}' % b",".join(
        b'"%d":"x"' % number for number in range(30_000)
    )
    yaml = b"data:\n" + b"".join(b'  "%d": x\n' % number for number in range(10_000)) + b" : :\n"

    async def one(number: int) -> None:
        if number % 3 == 0:
            await client.call("POST", _REVIEWS, yaml, **{"Content-Type": "application/yaml"})
        elif number % 3 == 1:
            await client.call("POST", client.maps, yaml, **{"Content-Type": "application/yaml"})
        else:
            await client.call("POST", f"{client.maps}?fieldValidation=Strict", strict)

    await _forever(16, one)


ABUSERS: dict[str, Callable[[Client, Sizes], Awaitable[None]]] = {
    "flood": flood, "watch": watch, "submit": submit, "listing": listing, "parse": parse,
}  # fmt: skip


async def _forever(workers: int, call: Callable[[int], Awaitable[Any]]) -> None:
    numbers = iter(range(10**9))

    async def work() -> None:
        for number in numbers:
            with contextlib.suppress(aiohttp.ClientError):
                await call(number)

    await asyncio.gather(*(work() for _ in range(workers)))


def _abuse(users: list[User], sizes: Sizes) -> None:
    """The second process: until it is ended."""
    os.nice(10)

    async def all_of_them() -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(user.session()) for user in users]
            await asyncio.gather(
                *(
                    ABUSERS[user.name](client, sizes)
                    for user, client in zip(users, clients, strict=True)
                )
            )

    asyncio.run(all_of_them())


# --- the quiet user -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Sample:
    """One request: its seconds, and the CPU seconds that the server used meanwhile."""

    wall: float
    server_cpu: float


async def quiet(user: User, server: int, seconds: float) -> dict[str, list[Sample]]:
    """The requests by kind. `server`: its process."""
    found: dict[str, list[Sample]] = {"get": [], "list": [], "create": [], "delete": []}
    async with user.session() as client:
        await client.call("POST", client.maps, _config_map("mine"))
        until, number = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            number += 1
            name = f"{client.maps}/quiet-{os.getpid()}-{number}"
            body = _config_map(name.rpartition("/")[2])
            for kind, method, path, sent in (
                ("get", "GET", f"{client.maps}/mine", None),
                ("list", "GET", client.maps, None),
                ("create", "POST", client.maps, body),
                ("get", "GET", name, None),
                ("delete", "DELETE", name, None),
            ):
                used, begun = _cpu(server), time.perf_counter()
                status = await client.call(method, path, sent)
                wall = time.perf_counter() - begun
                found[kind].append(Sample(wall, _cpu(server) - used))
                if status >= 300:
                    raise RuntimeError(f"the quiet user was refused: {method} {path}: {status}")
                await asyncio.sleep(_PAUSE)
    return found


# --- the measurement ----------------------------------------------------------------------------


def measure(options: report.Options) -> report.Report:
    sizes = QUICK if options.quick else FULL
    with (
        tempfile.TemporaryDirectory(prefix=".bench-fairness-", dir=Path.cwd()) as folder,
        EmbeddedServer.start(Path(folder), flags=()) as server,
    ):
        users = asyncio.run(_users(server, [QUIET, *ABUSERS]))
        user, pid = users[QUIET], server.process.pid
        alone = asyncio.run(quiet(user, pid, sizes.seconds))
        chosen = [name for name in ABUSERS if not options.extra.only or name in options.extra.only]
        abusers = multiprocessing.get_context("spawn").Process(
            target=_abuse, args=([users[name] for name in chosen], sizes), daemon=True
        )
        abusers.start()
        try:
            asyncio.run(quiet(user, pid, min(5.0, sizes.seconds)))  # until all have begun
            used, began = _cpu(pid), time.monotonic()
            beside = asyncio.run(quiet(user, pid, sizes.seconds))
            busy = (_cpu(pid) - used) / (time.monotonic() - began)
        finally:
            abusers.kill()
            abusers.join()
    rows = [_row(case, kind, found) for case, all_found in (("alone", alone), ("beside", beside))
            for kind, found in _with_all(all_found).items()]  # fmt: skip
    note = (
        f"the server used {busy:.2f} cores beside {', '.join(chosen)}; server CPU: how much the "
        "server computed while the quiet user waited, whatever else this machine does"
    )
    return report.Report(rows, _ratios(rows), notes=[note])


def _ratios(rows: list[report.Row]) -> dict[str, float]:
    found = {(row["case"], row["request"]): row for row in rows}
    columns = {"p99": "p99_ms", "p99 of server CPU": "server_cpu_p99_ms"}
    return {
        f"{kind}: {name} alone vs beside": report.ratio(
            found["alone", kind][column], found["beside", kind][column]
        )
        for kind in ("get", "list", "create", "delete", "all")
        for name, column in columns.items()
    }


async def _users(server: EmbeddedServer, names: list[str]) -> dict[str, User]:
    """A team and a member of it for each name."""
    door = Door.to(server)
    authority = (server.state / "tls" / "ca.crt").read_text()
    found: dict[str, User] = {}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=door.tls), headers=door.headers
    ) as session:
        for name in names:
            binding = {
                "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                            "name": "windlass-member"},
                "subjects": [{"kind": "User", "name": name,
                              "apiGroup": "rbac.authorization.k8s.io"}],
            }  # fmt: skip
            place = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}/rolebindings"
            await _post(session, door.url + "/api/v1/namespaces", {"metadata": {"name": name}})
            await _post(session, door.url + place, binding)
            made = await _post(session, door.url + _TOKENS, {"user": name})
            found[name] = User(name, door.url, made["token"], authority)
    return found


async def _post(session: aiohttp.ClientSession, url: str, body: Any) -> Any:
    async with session.post(url, json=body) as answer:
        if answer.status >= 300:
            raise RuntimeError(f"POST {url}: {await answer.text()}")
        return await answer.json()


def _cpu(pid: int) -> float:
    """CPU seconds of all threads, by the nanosecond."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended
            total += int(path.read_text().split()[0])
    return total / 1e9


def _with_all(found: dict[str, list[Sample]]) -> dict[str, list[Sample]]:
    return {**found, "all": [each for some in found.values() for each in some]}


def _row(case: str, kind: str, samples: list[Sample]) -> report.Row:
    wall = statistics.quantiles([each.wall for each in samples], n=100, method="inclusive")
    used = statistics.quantiles([each.server_cpu for each in samples], n=100, method="inclusive")
    return {
        "case": case, "request": kind, "requests": len(samples),
        "p50_ms": round(wall[49] * 1e3, 2), "p99_ms": round(wall[98] * 1e3, 2),
        "server_cpu_p50_ms": round(used[49] * 1e3, 3),
        "server_cpu_p99_ms": round(used[98] * 1e3, 3),
    }  # fmt: skip


def _config_map(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": {"settings": "x" * 400}}


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=tuple(ABUSERS), help="fewer abusive users")


if __name__ == "__main__":
    purpose = (__doc__ or "").partition("\n")[0]
    sys.exit(report.main("fairness", purpose, measure, _configure))
