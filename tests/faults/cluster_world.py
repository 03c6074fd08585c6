"""A real control plane with scheduler and controllers as processes, nodes that are played, and runs
of many kinds; and everything that can go wrong with them."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from tests.faults import cluster_checker
from tests.harness import players, rest, waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.network_path import Road
from tests.harness.parts import Part
from tests.harness.plugin import CRDS
from windlass.install import names
from windlass.install.manifests import rbac

Json = dict[str, Any]
NAMESPACE = "default"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
RUNS = f"/apis/windlass.dev/v1alpha1/namespaces/{NAMESPACE}/runs"
LEASE_SECONDS = 15.0
START_LIMIT = 45.0
"""`spec.duration.start` of every gang."""
HALF_FOR = START_LIMIT + 90.0
"""Seconds after which half a gang must be gone even if leaders were lost meanwhile: its own limit,
a lease, a pause of etcd, and what a slow machine adds."""
SILENT = 80.0
"""Seconds that a node is not heard of: longer than it takes to count as lost."""
PATIENCE = 240.0


class World:
    def __init__(self, folder: Path, seed: int, replicas: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.plane = ControlPlane.start(crds=CRDS)
        port = int(self.plane.url.rpartition(":")[2])
        self.roads = {name: Road(port) for name in ("scheduler", "controllers")}
        """To the API server, for each part its own."""
        self.rest = rest.from_kubeconfig(self.plane.kubeconfig)
        self._furnish()
        self.kubelets = players.Players(rest.from_kubeconfig(self.plane.kubeconfig))
        self.kubelets.start()
        self.clocks: list[Path] = []
        self.parts = [
            Part(self._kubeconfig(f"windlass-{name}"), folder, name, self._with_clock(name, number))
            for name in ("scheduler", "controllers")
            for number in range(replicas)
        ]
        self.expected: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self._count = 0

    def close(self) -> None:
        for part in self.parts:
            part.process.kill()
        self.kubelets.stop()
        for road in self.roads.values():
            road.close()
        self.rest.close()
        self.plane.stop()

    # --- furniture

    def _furnish(self) -> None:
        for name in (names.SYSTEM, names.NODES):
            self.post("/api/v1/namespaces", {"metadata": {"name": name}})
        self._grant()
        engine = {"server": "https://127.0.0.1:9", "images": "true", "addresses": "pod"}
        self.post("/api/v1/namespaces/windlass-system/configmaps", {
            "metadata": {"name": "engine"}, "data": engine})  # fmt: skip
        for name, more in (("default", {}), ("urgent", {"guarantee": {"cpu": "8"}})):
            self.post("/apis/windlass.dev/v1alpha1/queues", {
                "apiVersion": "windlass.dev/v1alpha1", "kind": "Queue",
                "metadata": {"name": name}, "spec": more})  # fmt: skip
        for number in range(5):
            self.add_node(f"n{number}", gpus=2 if number < 2 else 0)

    def _grant(self) -> None:
        """Each part has its own account with its own rights, and no other; leases are there, as
        the installation makes them."""
        for obj in rbac.objects():
            base = f"/apis/{obj['apiVersion']}" if "/" in obj["apiVersion"] else "/api/v1"
            namespace = obj["metadata"].get("namespace")
            space = f"/namespaces/{namespace}" if namespace else ""
            self.post(f"{base}{space}/{obj['kind'].lower()}s", obj)
        self._let_read_metrics()
        for name in cluster_checker.OURS:
            leases = f"/apis/coordination.k8s.io/v1/namespaces/{names.SYSTEM}/leases"
            self.post(leases, {"metadata": {"name": name}})

    def _let_read_metrics(self) -> None:
        """The tests read which part leads from its metrics, with the token of its account."""
        group = "rbac.authorization.k8s.io"
        accounts = [
            {"kind": "ServiceAccount", "name": f"windlass-{name}", "namespace": names.SYSTEM}
            for name in ("scheduler", "controllers")
        ]
        self.post(f"/apis/{group}/v1/clusterrolebindings", {
            "metadata": {"name": "tests-read-metrics"}, "subjects": accounts,
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": names.SCRAPER},
        })  # fmt: skip

    def add_node(self, name: str, gpus: int = 0) -> None:
        has = {"cpu": "4", "memory": "8Gi", "pods": "20"}
        has |= {"nvidia.com/gpu": str(gpus)} if gpus else {}
        ready = {"type": "Ready", "status": "True"}
        self.post("/api/v1/nodes", {
            "metadata": {"name": name},
            "status": {"capacity": has, "allocatable": has, "conditions": [ready]},
        })  # fmt: skip

    def post(self, path: str, body: Json) -> None:
        answer = self.rest.post(path, body)
        assert answer.status in (201, 409), answer.summary

    def _kubeconfig(self, account: str) -> Path:
        path = f"/api/v1/namespaces/{names.SYSTEM}/serviceaccounts/{account}/token"
        made = self.rest.post(path, {"spec": {"expirationSeconds": 6 * 3600}})
        assert made.status == 201, made.summary
        self.plane.tokens[account] = made.json["status"]["token"]
        config = json.loads(self.plane.token_kubeconfig(account).read_text())
        road = self.roads[account.removeprefix("windlass-")]
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{road.port}"
        file = self.folder / f"{account}.kubeconfig"
        file.write_text(json.dumps(config))
        return file

    def _with_clock(self, name: str, number: int) -> list[str]:
        """The wall clock of each of our processes is the machine's plus what a file says."""
        shim = self.folder / f"shim-{name}-{number}"
        shim.mkdir(exist_ok=True)
        clock = shim / "clock"
        clock.write_text("0")
        self.clocks.append(clock)
        (shim / "sitecustomize.py").write_text(
            "import datetime, pathlib\n"
            "from windlass.kinds.values import times\n"
            f"told, real = pathlib.Path({str(clock)!r}), times.now\n"
            "times.now = lambda: real() + datetime.timedelta(seconds=float(told.read_text()))\n"
        )
        return ["env", f"PYTHONPATH={shim}"]

    # --- work

    def submit(self, client: rest.Rest, kind: str) -> str:
        self._count += 1
        name = f"{kind}-{self._count}"
        spec, phase, size = self._kinds()[kind]()
        annotations = spec.pop("annotations")
        body = {
            "apiVersion": "windlass.dev/v1alpha1", "kind": "Run",
            "metadata": {"name": name},
            "spec": {
                "duration": {"start": f"{START_LIMIT:.0f}s"},
                "checkpoint": {"grace": "1s"},
                "retries": {"limit": 20, "causes": ["NodeLost", "Preempted"], "lostAfter": "5s"},
                "overrides": {"annotations": annotations}, **spec,
            },
        }  # fmt: skip
        self.persist(lambda: client.post(RUNS, body).status in (201, 409))
        self.expected[name], self.sizes[name] = phase, size
        return name

    def submit_pods(self, client: rest.Rest, last: str = "", seconds: float | None = None) -> str:
        """A gang of external pods, placed by the same scheduler through bindings. `last`: how the
        name of its last pod ends."""
        self._count += 1
        name, size = f"others-{self._count}", self.random.randint(2, 4)
        told = {
            "windlass.dev/gang": name, "windlass.dev/gang-size": str(size),
            "windlass.dev/gang-timeout": f"{START_LIMIT:.0f}s",
            players.RUN_FOR: f"{seconds or self.random.uniform(0.5, 6):.1f}",
        }  # fmt: skip
        requests = {"cpu": "1", "memory": "64Mi"}
        container = {"name": "main", "image": "none", "resources": {"requests": requests}}
        for number in range(size):
            ending = last if number == size - 1 else ""
            body = {
                "metadata": {"name": f"{name}-{number}{ending}", "annotations": told},
                "spec": {"schedulerName": "windlass", "restartPolicy": "Never",
                         "automountServiceAccountToken": False, "containers": [container]},
            }  # fmt: skip
            self.persist(lambda b=body: client.post(PODS, b).status in (201, 409))
        self.sizes[f"gang {name}"] = size
        return name

    KINDS = ("single", "gang", "gpus", "elastic", "failing", "urgent", "peers")

    def _kinds(self) -> dict[str, Callable[[], tuple[Json, str, int]]]:
        throw = self.random
        seconds = {players.RUN_FOR: f"{throw.uniform(0.5, 6):.1f}"}

        def role(replicas: int, cpu: str = "1", **more: Any) -> Json:
            resources = {"cpu": cpu, "memory": "64Mi"}
            return {"command": ["true"], "replicas": replicas, "resources": resources, **more}

        size = throw.randint(2, 6)
        return {
            "single": lambda: ({"roles": [role(1)], "annotations": seconds}, "Succeeded", 1),
            "gang": lambda: ({"roles": [role(size)], "annotations": seconds}, "Succeeded", size),
            "gpus": lambda: (
                {"roles": [role(2, devices=[{"kind": "gpu"}])], "annotations": seconds},
                "Succeeded", 2,
            ),
            "elastic": lambda: (
                {"roles": [role(4, minReplicas=1, resize="live")], "annotations": seconds},
                "Succeeded", 1,
            ),
            "failing": lambda: (
                {"roles": [role(2)], "annotations": {**seconds, players.FAIL: "3"}}, "Failed", 2,
            ),
            "urgent": lambda: (
                {"roles": [role(4, "2")], "queue": "urgent", "annotations": seconds},
                "Succeeded", 4,
            ),
            "peers": lambda: (
                {"roles": [role(2)], "framework": "ray", "annotations": seconds}, "Succeeded", 2,
            ),
        }  # fmt: skip

    def persist(self, done: Callable[[], bool]) -> None:
        """Until it worked: the API may be away."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError):
                if done():
                    return
            time.sleep(0.2)
        raise AssertionError("the API server never came back")

    def settle(self) -> None:
        """Until every Run has ended, as far as it should."""

        def left() -> list[str]:
            listed = self.rest.get(RUNS).json["items"] + self.rest.get(PODS).json["items"]
            return [
                f"{each['metadata']['name']}: {each.get('status')}"
                for each in listed
                if each.get("status", {}).get("phase") not in cluster_checker.ENDED
            ]

        deadline = time.monotonic() + PATIENCE
        waiting = ["?"]
        while waiting and time.monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError, KeyError):
                waiting = left()
            time.sleep(0.3)
        assert not waiting, "\n".join([*waiting, *(p.process.log_tail(15) for p in self.parts)])

    def check(self) -> None:
        found = cluster_checker.problems(
            self.rest, self.kubelets.played.values(), self.expected, sizes=self.sizes,
            elastic={name for name in self.sizes if name.startswith("elastic")},
            half_for=HALF_FOR,
        )  # fmt: skip
        found += [f"a node was given too much: {each}" for each in self.kubelets.refused.values()]
        assert not found, "\n".join(found)

    def clear(self) -> None:
        """Deletes every Run; nothing of them stays."""
        for each in self.rest.get(RUNS).json["items"]:
            self.rest.delete(f"{RUNS}/{each['metadata']['name']}")
        for each in self.rest.get(PODS).json["items"]:
            if not each["metadata"].get("ownerReferences"):
                self.rest.delete(f"{PODS}/{each['metadata']['name']}")
        waiting.until(
            lambda: not (cluster_checker.leftovers(self.rest, NAMESPACE)),
            "nothing is left behind",
            PATIENCE,
        )
        self.expected.clear()
        self.kubelets.forget()

    # --- faults

    def wait_a_moment(self) -> None:
        """Faults come at any point of what goes on, not at its beginning."""
        time.sleep(self.random.uniform(0, 4))

    def leader(self, name: str) -> Part | None:
        alive = [part for part in self.parts if part.name == name and part.process.alive]
        return next((part for part in alive if part.leads()), None)

    def kill(self, name: str) -> None:
        """kill -9 of the leader; it is started again, as a Deployment would."""
        part = self.leader(name) or self.random.choice([p for p in self.parts if p.name == name])
        part.process.kill()
        began = time.monotonic()
        time.sleep(self.random.uniform(0, 2))
        part.start()
        waiting.until(lambda: self.leader(name), f"a {name} leads again", PATIENCE)
        print(f"  another {name} led after {time.monotonic() - began:.1f} s")

    def pause_leader(self, name: str) -> None:
        """Past its lease; then it comes back and believes for a moment that nothing happened."""
        part = self.leader(name)
        if part is None:
            return
        part.process.send(signal.SIGSTOP)
        time.sleep(LEASE_SECONDS + 4)
        part.process.send(signal.SIGCONT)

    def pause_etcd(self) -> None:
        self.plane.etcd.send(signal.SIGSTOP)
        time.sleep(20)
        self.plane.etcd.send(signal.SIGCONT)

    def cut_watches(self) -> None:
        for _ in range(5):
            for road in self.roads.values():
                road.cut()
            time.sleep(self.random.uniform(0.05, 0.8))

    def part_network(self, *names: str) -> None:
        """Nothing gets through between these parts and the API server, for longer than a lease,
        without an error; then either all that was sent arrives late, or connections break."""
        roads = [self.roads[name] for name in names]
        for road in roads:
            road.block()
        time.sleep(LEASE_SECONDS + self.random.uniform(2, 10))
        for road in roads:
            if self.random.random() < 0.5:
                road.cut()
            road.clear()

    def throttle(self) -> None:
        """A small API server on which our processes get one seat and no queue: what they send at
        once is answered 429, and the server says that it was."""
        self.plane.restart_apiserver(
            "--max-requests-inflight=20", "--max-mutating-requests-inflight=10"
        )
        group = "/apis/flowcontrol.apiserver.k8s.io/v1"
        self.post(f"{group}/prioritylevelconfigurations", {
            "metadata": {"name": "narrow"},
            "spec": {"type": "Limited", "limited": {
                "nominalConcurrencyShares": 1, "lendablePercent": 0,
                "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"}}},
        })  # fmt: skip
        anything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"],
                    "clusterScope": True, "namespaces": ["*"]}  # fmt: skip
        subjects = [
            {"kind": "ServiceAccount", "serviceAccount": {"name": n, "namespace": names.SYSTEM}}
            for n in (names.SCHEDULER, names.CONTROLLERS)
        ]
        self.post(f"{group}/flowschemas", {
            "metadata": {"name": "narrow"},
            "spec": {"matchingPrecedence": 2, "distinguisherMethod": {"type": "ByUser"},
                     "priorityLevelConfiguration": {"name": "narrow"},
                     "rules": [{"subjects": subjects, "resourceRules": [anything]}]},
        })  # fmt: skip
        waiting.until(self._is_throttled, "our processes are answered 429", PATIENCE)
        time.sleep(10)
        print(f"  {self._rejected():.0f} requests were answered 429")
        for kind in ("flowschemas", "prioritylevelconfigurations"):
            self.persist(
                lambda k=kind: self.rest.delete(f"{group}/{k}/narrow").status in (200, 404)
            )
        self.plane.restart_apiserver()

    def _rejected(self) -> float:
        return self.plane.metric(
            "apiserver_flowcontrol_rejected_requests_total", 'priority_level="narrow"'
        )

    def _is_throttled(self) -> bool:
        """There is always something to do for them until then."""
        self.submit(self.rest, "gang")
        time.sleep(0.5)
        return self._rejected() > 0

    def kill_between_bindings(self) -> None:
        """Of a gang of external pods all but one are bound, which is refused; then the scheduler is
        killed. The next leader completes the gang, or evicts what there is of it in time."""
        policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
                "resources": ["pods/binding"]}  # fmt: skip
        self.persist(lambda: self.rest.post(f"{policies}ies", {
            "metadata": {"name": "not-the-last"},
            "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [
                {"expression": "!object.metadata.name.endsWith('-last')", "message": "not now"}]},
        }).status in (201, 409))  # fmt: skip
        self.persist(lambda: self.rest.post(f"{policies}ybindings", {
            "metadata": {"name": "not-the-last"},
            "spec": {"policyName": "not-the-last", "validationActions": ["Deny"]},
        }).status in (201, 409))  # fmt: skip
        try:
            waiting.until(self._is_refused, "bindings are refused", PATIENCE)
            gang = waiting.until(self._half_bound_gang, "a gang is half bound", PATIENCE)
            self.kill("scheduler")
            if self.random.random() < 0.5:  # the refusal stays, and bound pods must leave
                waiting.until(lambda: not any(self._bound(gang)), "it was evicted", PATIENCE)
        finally:
            for kind in ("ybindings", "ies"):
                path = f"{policies}{kind}/not-the-last"
                self.persist(lambda p=path: self.rest.delete(p).status in (200, 404))
        waiting.until(lambda: len(set(self._bound(gang))) < 2, "it is whole or gone", PATIENCE)
        for each in self.rest.get(PODS).json["items"]:
            if each["metadata"]["name"].startswith(f"{gang}-"):
                self.rest.delete(f"{PODS}/{each['metadata']['name']}")

    def _is_refused(self) -> bool:
        """Asked with a pod that no scheduler serves."""
        container = {"name": "main", "image": "none"}
        spec = {"schedulerName": "nobody", "containers": [container],
                "automountServiceAccountToken": False}  # fmt: skip
        self.rest.post(PODS, {"metadata": {"name": "probe-last"}, "spec": spec})
        binding = {
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "probe-last"},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "n0"},
        }  # fmt: skip
        answer = self.rest.post(f"{PODS}/probe-last/binding", binding, dryRun="All")
        if b"not now" not in answer.body:
            return False
        self.rest.delete(f"{PODS}/probe-last", {"gracePeriodSeconds": 0})
        return True

    def _half_bound_gang(self) -> str:
        """One that is; others may push the first one aside."""
        name = self.submit_pods(self.rest, last="-last", seconds=3600.0)
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline and (bound := self._bound(name)):
            if any(bound) and not all(bound):
                return name
            time.sleep(0.05)
        return ""

    def _bound(self, gang: str) -> list[bool]:
        pods = self.rest.get(PODS).json["items"]
        chosen = [each for each in pods if each["metadata"]["name"].startswith(f"{gang}-")]
        return [bool(each["spec"].get("nodeName")) for each in chosen]

    def write_between(self) -> None:
        """Another client writes into Runs and pods all the time."""
        over = time.monotonic() + 8
        while time.monotonic() < over:
            for path in (RUNS, PODS):
                with contextlib.suppress(OSError, ValueError, KeyError):
                    for each in self.rest.get(path).json["items"]:
                        note = {"test/noted": str(self.random.random())}
                        name = each["metadata"]["name"]
                        self.rest.merge(f"{path}/{name}", {"metadata": {"annotations": note}})

    def lose_node(self) -> None:
        """One that members run on goes dark and is removed; another comes in its place."""
        used = sorted({each.node for each in self.kubelets.running()} - {"n0", "n1"})
        if not used:
            return
        node = self.random.choice(used)
        self.kubelets.power_off(node)
        self.persist(lambda: self.rest.delete(f"/api/v1/nodes/{node}").status in (200, 404))
        self.add_node(f"{node}x")

    def silence_node(self) -> None:
        """One is cut off: its pods run on, and send no status. It comes back when they
        were given up."""
        node = self.random.choice(sorted({each.node for each in self.kubelets.running()}) or ["n4"])
        self.kubelets.silent.add(node)
        self._mark(node, "Unknown")
        time.sleep(SILENT)
        self.kubelets.hear(node)
        self._mark(node, "True")

    def _mark(self, node: str, ready: str) -> None:
        path, condition = f"/api/v1/nodes/{node}/status", {"type": "Ready", "status": ready}
        body = {"status": {"conditions": [condition]}}
        self.persist(lambda: self.rest.strategic(path, body).status in (200, 404))

    def jump_clock(self) -> None:
        """Of one process, or of all; replicas that disagree are the worst of it."""
        several = self.random.random() < 0.5
        for clock in self.clocks if several else [self.random.choice(self.clocks)]:
            clock.write_text(str(self.random.choice((-7200, -600, 600, 7200))))

    FAULTS: ClassVar[dict[str, Callable[[World], None]]] = {
        "scheduler killed": lambda world: world.kill("scheduler"),
        "controllers killed": lambda world: world.kill("controllers"),
        "API server restarted": lambda world: world.plane.restart_apiserver(),
        "etcd paused": pause_etcd,
        "scheduler paused past its lease": lambda world: world.pause_leader("scheduler"),
        "controllers paused past their lease": lambda world: world.pause_leader("controllers"),
        "watches cut": cut_watches,
        "scheduler parted from the API server": lambda world: world.part_network("scheduler"),
        "controllers parted from the API server": lambda world: world.part_network("controllers"),
        "all parted from the API server": lambda world: world.part_network(*world.roads),
        "history compacted": lambda world: world.plane.forget_history(),
        "throttled": throttle,
        "others write": write_between,
        "node lost": lose_node,
        "node silent": silence_node,
        "clock jumps": jump_clock,
        "scheduler killed between bindings": kill_between_bindings,
    }


class Load(threading.Thread):
    """Submits runs while faults happen."""

    def __init__(self, world: World, count: int) -> None:
        super().__init__(daemon=True, name="load")
        self.world, self.count = world, count
        self.failure: BaseException | None = None

    def run(self) -> None:
        client = rest.from_kubeconfig(self.world.plane.kubeconfig)
        try:
            for _ in range(self.count):
                kind = self.world.random.choice((*World.KINDS, "others"))
                if kind == "others":
                    self.world.submit_pods(client)
                else:
                    self.world.submit(client, kind)
                time.sleep(self.world.random.uniform(0.05, 0.9))
        except BaseException as failure:
            self.failure = failure
        finally:
            client.close()
