"""A seeded campaign: writers and watchers against a server that keeps crashing.

Called by the fault tests with a server and a way to crash it (kill -9, power loss). Writers note
what they sent and what was answered; watchers note every event and resume from the last version
they saw. What all of it must add up to is `history`'s business, not this module's.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import math
import random
import ssl
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import yaml

from tests.harness.embedded import EmbeddedServer
from tests.harness.processes import StartError

RESOURCES = ("configmaps", "secrets")
SELECTORS = ("", "", "side=even", "side!=odd")
OBJECTS = 16
END = "zz-end"
"""The last object written: watchers stop when they see it."""
ANSWER_SECONDS = 20
"""A request that is not answered within this time while the server lives counts as hung."""

UNKNOWN, ACKNOWLEDGED, REFUSED = "unknown", "acknowledged", "refused"


@dataclasses.dataclass(slots=True)
class Operation:
    """One write: what was asked, and what is known of its outcome."""

    verb: str
    resource: str
    name: str
    mark: str
    """Unique; stored inside the object, so that each revision names the write it came from."""
    uid: str = ""
    """Deletes: of the object that was meant."""
    based_on: int = 0
    """Replaces: the version that is replaced."""
    sent: float = 0.0
    answered: float = math.inf
    outcome: str = UNKNOWN
    version: int = 0


@dataclasses.dataclass(slots=True)
class Watched:
    """All events that one watcher got, over any number of connections."""

    resource: str
    selector: str
    start: int
    events: list[tuple[str, int, str, str]] = dataclasses.field(default_factory=list)
    """Type, version, name, mark."""
    heard: dict[str, float] = dataclasses.field(default_factory=dict)
    """When each mark was first seen."""
    connections: int = 0


@dataclasses.dataclass(frozen=True)
class Door:
    """How to reach the server: from the admin's kubeconfig."""

    url: str
    headers: dict[str, str]
    tls: ssl.SSLContext

    @classmethod
    def to(cls, server: EmbeddedServer) -> Door:
        config = yaml.safe_load(server.kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        return cls(
            cluster["server"],
            {"Authorization": f"Bearer {user['token']}"},
            ssl.create_default_context(cadata=authority),
        )


class Campaign:
    """`crash` ends the server's process and leaves its state folder as the fault leaves it."""

    def __init__(
        self,
        server: EmbeddedServer,
        crash: Callable[[], None],
        *,
        seed: int,
        crashes: int,
        writers: int = 8,
        watchers: int = 6,
        fewest_writes_between: int = 1,
        most_writes_between: int = 120,
    ) -> None:
        self._server = server
        self._crash = crash
        self._random = random.Random(seed)
        self._crashes = crashes
        self._writes_between = (fewest_writes_between, most_writes_between)
        self._writer_seeds = [self._random.random() for _ in range(writers)]
        self._watcher_count = watchers
        self.operations: list[Operation] = []
        self.watched: list[Watched] = []
        self.problems: list[str] = []
        """What no server may do, crash or not: hang, answer 5xx, read stale."""
        self.crashes_while_starting = 0
        self._known: dict[tuple[str, str], dict[str, Any]] = {}
        self._up = asyncio.Event()
        self._crash_due = asyncio.Event()
        self._acknowledged_since_start = 0
        self._crash_after = 0
        self._writing = True

    async def run(self) -> None:
        self._door = Door.to(self._server)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
        )
        async with self._session:
            self._up.set()
            watchers = [asyncio.create_task(self._watch(i)) for i in range(self._watcher_count)]
            writers = [asyncio.create_task(self._write(s)) for s in self._writer_seeds]
            for _ in range(self._crashes):
                await self._live_and_crash()
            self._writing = False
            await asyncio.gather(*writers)
            for resource in RESOURCES:
                last = Operation("create", resource, END, f"mark-end{resource}")
                await self._attempt(last, "even")
            async with asyncio.timeout(60):
                await asyncio.gather(*watchers)

    # --- crashing

    async def _live_and_crash(self) -> None:
        self._crash_after = self._random.randint(*self._writes_between)
        self._acknowledged_since_start = 0
        self._crash_due.clear()
        async with asyncio.timeout(120):
            await self._crash_due.wait()
        await asyncio.sleep(self._random.uniform(0, 0.02))
        self._up.clear()
        self._crash()
        while self._random.random() < 0.2:
            await self._crash_while_starting()
        await asyncio.to_thread(self._server.launch)
        self._door = Door.to(self._server)
        self._up.set()

    async def _crash_while_starting(self) -> None:
        self.crashes_while_starting += 1
        starting = asyncio.create_task(asyncio.to_thread(self._server.launch))
        await asyncio.sleep(self._random.uniform(0.1, 1.2))
        self._crash()
        with contextlib.suppress(StartError):
            await starting

    # --- writing

    async def _write(self, seed: float) -> None:
        choose = random.Random(seed)
        while self._writing:
            await self._up.wait()
            operation, side = self._next_operation(choose)
            await self._attempt(operation, side)
            if choose.random() < 0.1:
                await self._read_back(operation)

    def _next_operation(self, choose: random.Random) -> tuple[Operation, str]:
        resource = choose.choice(RESOURCES)
        name = f"object-{choose.randrange(OBJECTS)}"
        known = self._known.get((resource, name))
        verb = choose.choices(("create", "patch", "replace", "delete"), (3, 5, 4, 2))[0]
        if known is None and verb in ("replace", "delete"):
            verb = "create"
        operation = Operation(verb, resource, name, f"mark-{choose.getrandbits(60):x}")
        if known is not None and verb in ("replace", "delete"):
            operation.uid = known["metadata"]["uid"]
            operation.based_on = int(known["metadata"]["resourceVersion"])
        return operation, choose.choice(("even", "odd"))

    async def _attempt(self, operation: Operation, side: str) -> None:
        method, path, body, content_type = _request(operation, side)
        self.operations.append(operation)
        operation.sent = time.monotonic()
        door = self._door
        try:
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                self._session.request(
                    method,
                    door.url + path,
                    data=json.dumps(body).encode(),
                    headers=door.headers | {"Content-Type": content_type},
                    ssl=door.tls,
                ) as response,
            ):
                self._note(operation, response.status, await response.json())
        except TimeoutError:
            if self._up.is_set() and door is self._door:
                self.problems.append(f"no answer in {ANSWER_SECONDS} s: {operation}")
        except (aiohttp.ClientError, OSError):
            await asyncio.sleep(0.005)

    def _note(self, operation: Operation, code: int, answer: dict[str, Any]) -> None:
        operation.answered = time.monotonic()
        key = (operation.resource, operation.name)
        if code in (200, 201):
            operation.outcome = ACKNOWLEDGED
            if operation.verb == "delete":
                self._known.pop(key, None)
            else:
                operation.version = int(answer["metadata"]["resourceVersion"])
                if answer["metadata"]["annotations"]["mark"] != operation.mark:
                    self.problems.append(f"answered with another's write: {operation}: {answer}")
                self._learn(key, answer)
            self._acknowledged_since_start += 1
            if self._acknowledged_since_start >= self._crash_after:
                self._crash_due.set()
        elif code in (404, 409):
            operation.outcome = REFUSED
            if code == 404:
                self._known.pop(key, None)
        else:
            self.problems.append(f"answered {code}: {operation}: {answer}")

    def _learn(self, key: tuple[str, str], found: dict[str, Any]) -> None:
        known = self._known.get(key)
        version = int(found["metadata"]["resourceVersion"])
        if known is None or int(known["metadata"]["resourceVersion"]) < version:
            self._known[key] = found

    async def _read_back(self, operation: Operation) -> None:
        """A read never shows less than what was acknowledged before it was sent."""
        key = (operation.resource, operation.name)
        written = [
            other.version
            for other in self.operations
            if (other.resource, other.name) == key and other.outcome == ACKNOWLEDGED
        ]
        door = self._door
        try:
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                self._session.get(
                    f"{door.url}{_collection(key[0])}/{key[1]}", headers=door.headers, ssl=door.tls
                ) as response,
            ):
                answer = await response.json()
                if response.status == 200:
                    self._learn(key, answer)
                    seen = int(answer["metadata"]["resourceVersion"])
                    if seen < max(written, default=0):
                        self.problems.append(f"read {seen} of {key} after {max(written)}")
        except (TimeoutError, aiohttp.ClientError, OSError):
            return

    # --- watching

    async def _watch(self, index: int) -> None:
        resource = RESOURCES[index % len(RESOURCES)]
        selector = SELECTORS[index % len(SELECTORS)]
        door = self._door
        async with self._session.get(
            door.url + _collection(resource), headers=door.headers, ssl=door.tls
        ) as response:
            listed = await response.json()
        watched = Watched(resource, selector, int(listed["metadata"]["resourceVersion"]))
        self.watched.append(watched)
        cursor = watched.start
        while not (watched.events and watched.events[-1][2] == END):
            await self._up.wait()
            try:
                cursor = await self._follow(watched, cursor)
            except _Cut as cut:
                cursor = cut.cursor
                await asyncio.sleep(0.02)

    async def _follow(self, watched: Watched, cursor: int) -> int:
        door = self._door
        query = {"watch": "1", "resourceVersion": str(cursor), "allowWatchBookmarks": "true"}
        if watched.selector:
            query["labelSelector"] = watched.selector
        try:
            async with self._session.get(
                door.url + _collection(watched.resource),
                params=query,
                headers=door.headers,
                ssl=door.tls,
            ) as response:
                if response.status != 200:
                    self.problems.append(f"watch from {cursor}: {await response.text()}")
                    raise _Cut(cursor)
                watched.connections += 1
                async for line in response.content:
                    if not line.endswith(b"\n"):
                        raise _Cut(cursor)
                    cursor = self._observe(watched, json.loads(line), cursor)
                    if watched.events and watched.events[-1][2] == END:
                        return cursor
        except (aiohttp.ClientError, OSError, TimeoutError) as problem:
            raise _Cut(cursor) from problem
        return cursor

    def _observe(self, watched: Watched, event: dict[str, Any], cursor: int) -> int:
        if event["type"] == "ERROR":
            self.problems.append(f"watch of {watched.resource} from {cursor}: {event}")
            return cursor
        metadata = event["object"]["metadata"]
        version = int(metadata["resourceVersion"])
        if event["type"] == "BOOKMARK":
            if version < cursor:
                self.problems.append(f"bookmark {version} after {cursor}")
        else:
            mark = metadata["annotations"]["mark"]
            watched.events.append((event["type"], version, metadata["name"], mark))
            watched.heard.setdefault(mark, time.monotonic())
        return version


class _Cut(Exception):
    """The connection broke; `cursor` is the last version that was seen."""

    def __init__(self, cursor: int) -> None:
        super().__init__()
        self.cursor = cursor


def _collection(resource: str) -> str:
    return f"/api/v1/namespaces/default/{resource}"


def _request(operation: Operation, side: str) -> tuple[str, str, dict[str, Any], str]:
    """Method, path, body and content type."""
    metadata: dict[str, Any] = {
        "name": operation.name,
        "annotations": {"mark": operation.mark},
        "labels": {"side": side},
    }
    collection, body = _collection(operation.resource), {"metadata": metadata}
    path = f"{collection}/{operation.name}"
    if operation.verb == "create":
        return "POST", collection, body, "application/json"
    if operation.verb == "patch":
        return "PATCH", path, body, "application/merge-patch+json"
    if operation.verb == "replace":
        metadata["resourceVersion"] = str(operation.based_on)
        return "PUT", path, body, "application/json"
    conditions = {"uid": operation.uid, "resourceVersion": str(operation.based_on)}
    return "DELETE", path, {"preconditions": conditions}, "application/json"
