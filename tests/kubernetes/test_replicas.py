"""Two servers on real nodes, with S3-compatible storage and PostgreSQL: while one of them is always
being killed (kill -9), code is sent and fetched, members find each other, calls travel through a
mailbox and logs are kept. Nothing is lost, nothing is done twice, and each of the two, alone, gives
the same answers.

WINDLASS_SEED repeats a run; `make soak` does more of it.
"""

from __future__ import annotations

import hashlib
import os
import random
import socket
import tempfile
import threading
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import windlass
from tests.contract.objects import ok
from tests.endtoend.rendezvous import MEETING
from tests.harness import kubelet, objectstore, postgres, processes, rest, waiting
from tests.harness.platform import Platform, Shared
from tests.harness.plugin import CRDS

pytestmark = [pytest.mark.kubernetes, pytest.mark.kubelet, pytest.mark.timeout(600)]

SMALL: dict[str, Any] = {"cpus": "100m", "memory": "64Mi"}
ROOT = "/apis/platform.windlass.dev/v1alpha1/namespaces/default"
PODS = "/api/v1/namespaces/default/pods"
GANGS, CALLS = (12, 200) if os.environ.get("WINDLASS_SOAK") == "1" else (3, 24)
JOB = f"""
{MEETING}
import hashlib
mine = hashlib.sha256(open("payload", "rb").read()).hexdigest()
if rank == 0:
    print("both have", mine if heard().strip() == mine else "not the same")
else:
    say(mine)
    print("said it")
"""


class Killer:
    """Kills one of the servers after the other, until everything is done."""

    def __init__(self, platform: Platform, lot: random.Random) -> None:
        self._platform = platform
        self._lot = lot
        self.kills = 0

    def until(self, done: threading.Event) -> None:
        while not done.wait(self._lot.uniform(0.0, 1.5)):
            number = self._lot.randrange(len(self._platform.servers))
            self._platform.servers[number].kill()
            self.kills += 1
            done.wait(self._lot.uniform(0.0, 1.0))
            start(self._platform, number)


def start(platform: Platform, number: int) -> None:
    """Starts a server and waits until it is open to callers."""
    where = urllib.parse.urlsplit(platform.addresses[number])

    def listens() -> bool:
        try:
            socket.create_connection((where.hostname or "", where.port or 0), 1).close()
        except OSError:
            return False
        return True

    platform.servers[number].start()
    platform.servers[number].wait_ready(listens)


@pytest.fixture(scope="module")
def platform(kubernetes_binaries: Path) -> Iterator[Platform]:
    folder = Path(tempfile.mkdtemp(prefix="windlass-replicas-"))
    processes.remove_at_exit(folder)
    try:
        store = objectstore.ObjectStore(folder / "storage")
        (folder / "database").mkdir()
        database = postgres.Postgres(folder / "database")
        cluster = kubelet.Cluster.start(nodes=2, crds=CRDS)
    except (objectstore.NoStoreError, postgres.NoPostgresError, kubelet.NoNodesError) as problem:
        pytest.skip(str(problem))
    with cluster, store:
        store.start()
        database.start()
        try:
            shared = Shared(store.url("cluster"), store.keys, database.url("platform"))
            with Platform.start(cluster, folder, shared) as started:
                yield started
        finally:
            database.stop()


@pytest.fixture(scope="module")
def client(platform: Platform) -> Iterator[windlass.Client]:
    with windlass.Client(kubeconfig=platform.kubeconfig) as made:
        yield made


def send_and_run(client: windlass.Client, folder: Path, number: int) -> str:
    """A gang of two whose members compare the code that each of them fetched."""
    where = folder / f"gang{number}"
    where.mkdir()
    payload = random.Random(number).randbytes((number % 3) * (9 << 20) + 1000)
    (where / "payload").write_bytes(payload)
    (where / "job.py").write_text(JOB)
    handle = client.run(
        ["python3", "job.py"], name=f"gang{number}", workers=2, workdir=where, **SMALL
    )
    ended = handle.wait(300)
    assert ended.status.phase == "Succeeded", (ended.status.reason, ended.status.message)
    assert ended.status.attempt == 0, "no attempt was lost"
    return hashlib.sha256(payload).hexdigest()


def call_all(client: windlass.Client, journal: Path) -> list[int]:
    """Calls that leave a mark each time they are made; small and large ones."""

    def square(number: int) -> tuple[int, bytes]:
        import uuid

        (journal / f"{number}-{uuid.uuid4().hex}").touch()
        return number * number, b"r" * (number % 4) * 40_000

    mount = {str(journal): f"host:{journal}"}
    with windlass.Executor(2, client=client, mounts=mount, **SMALL) as pool:
        found = list(pool.map(square, range(CALLS), timeout=300))
    assert [len(data) for _, data in found] == [(n % 4) * 40_000 for n in range(CALLS)]
    return [value for value, _ in found]


def test_servers_that_are_killed_all_the_time_lose_nothing(
    platform: Platform, client: windlass.Client, tmp_path: Path
) -> None:
    seed = int(os.environ.get("WINDLASS_SEED") or random.randrange(10**6))
    print(f"WINDLASS_SEED={seed}")
    killer = Killer(platform, random.Random(seed))
    tmp_path.chmod(0o755)
    journal = tmp_path / "journal"
    journal.mkdir()
    journal.chmod(0o777)
    done = threading.Event()
    with ThreadPoolExecutor(4) as threads:
        calls = threads.submit(call_all, client, journal)
        gangs: list[Future[str]] = [
            threads.submit(send_and_run, client, tmp_path, number) for number in range(GANGS)
        ]
        futures: list[Future[Any]] = [calls, *gangs]
        waiting = threading.Thread(
            target=lambda: ([each.exception() for each in futures], done.set())
        )
        waiting.start()
        killer.until(done)
        waiting.join()
    assert killer.kills > 0
    assert calls.result() == [number * number for number in range(CALLS)]
    made = sorted(int(path.name.partition("-")[0]) for path in journal.iterdir())
    assert made == list(range(CALLS)), "each call was made once"
    payloads = [each.result() for each in gangs]
    keep_logs(platform, killer)
    assert_both_say_the_same(platform, payloads)


def keep_logs(platform: Platform, killer: Killer) -> None:
    """The pods go, and agents hand their logs to servers that are killed meanwhile."""
    api = platform.cluster.plane.rest
    done = threading.Event()
    killing = threading.Thread(target=killer.until, args=(done,))
    killing.start()
    try:
        for number in range(GANGS):
            chosen = {"labelSelector": f"windlass.dev/run=gang{number}"}
            for pod in ok(api.get(PODS, **chosen))["items"]:
                api.delete(f"{PODS}/{pod['metadata']['name']}")
        waiting.until(
            lambda: all(len(kept(api, n)) == 2 for n in range(GANGS)), "all logs are kept", 180
        )
    finally:
        done.set()
        killing.join()


def kept(api: rest.Rest, number: int) -> list[dict[str, Any]]:
    answer = api.get(f"{ROOT}/runs/gang{number}/logs")
    return list(answer.json["items"]) if answer.status == 200 else []


def assert_both_say_the_same(platform: Platform, payloads: list[str]) -> None:
    said = []
    for number, other in ((0, 1), (1, 0)):
        platform.servers[other].kill()
        platform.server = platform.servers[number]
        waiting.until(platform._serves, "the one that is left answers")
        said.append(answers(platform.cluster.plane.rest))
        start(platform, other)
    assert said[0] == said[1]
    assert said[0]["nodes"] == ["node-0", "node-1"], "agents told whichever server was there"
    for number, payload in enumerate(payloads):
        assert any(f"both have {payload}" in text for text in said[0][f"gang{number}"])


def answers(api: rest.Rest) -> dict[str, list[str]]:
    """What one server says: kept logs and their text, code, runs, addresses, what is measured."""
    found: dict[str, list[str]] = {}
    for number in range(GANGS):
        name = f"gang{number}"
        run = ok(api.get(f"/apis/windlass.dev/v1alpha1/namespaces/default/runs/{name}"))
        told = []
        for each in kept(api, number):
            told += [str(each), api.get(f"{ROOT}/runs/{name}/logs/{each['name']}").body.decode()]
        digest = run["spec"]["code"]["digest"]
        blob = api.request("GET", f"{ROOT}/blobs/{digest}")
        assert f"sha256:{hashlib.sha256(blob.body).hexdigest()}" == digest
        told.append(api.get(f"{ROOT}/runs/{name}/addresses").summary)
        found[name] = told
    listed = ok(api.get(f"{ROOT}/ps", finished=100))
    found["ps"] = sorted(each["name"] for each in listed["items"])
    measured = ok(api.get(f"{ROOT.partition('/namespaces')[0]}/nodemetrics"))["items"]
    found["nodes"] = sorted(each["metadata"]["name"] for each in measured)
    return found
