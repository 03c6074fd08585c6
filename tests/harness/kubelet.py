"""Real nodes: containerd and kubelet, as many pairs as wanted, on one machine.

`Cluster.start` is a control plane with nodes; pods there really run. Needs root, and Debian's
containerd, runc and CNI plug-ins: `python -m tests.harness.kubelet` installs them and makes the
images, so that no test's timeout counts that.

A node is a process and mount namespace with /var/lib, /var/log and /run of its own, so nodes are
as separate as machines are, and killing the first process of one ends all that ever ran there and
unmounts all that was mounted. What is left then, cgroups and network links, is removed by `clean`,
which the reaper of `processes` calls too when the tests were killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.harness import build, images, node_init
from tests.harness.control_plane import ControlPlane
from tests.harness.processes import Process, Stoppable, remove_at_exit, run_at_exit

PACKAGES = ("containerd", "runc", "containernetworking-plugins", "iproute2", "busybox-static")
_PROGRAMS = ("containerd", "ctr", "runc", "ip", "busybox", "unshare", "nsenter")
_CNI = Path("/usr/lib/cni")
_CGROUPS = Path("/sys/fs/cgroup")
_INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
_INSTANCES = 1024
"""Each kubelet and containerd takes dozens; 128, the kernel's default, are soon gone."""
_KUBELET_PORT = 10250
_NODES_AT_MOST = 7


class NoNodesError(Exception):
    """Why there can be no real nodes here, with the remedy."""


def missing() -> list[str]:
    """What of the machine is not there yet."""
    found = [name for name in _PROGRAMS if _program(name) is None]
    return found if (_CNI / "ptp").exists() else [*found, "CNI plug-ins"]


def ensure(say: Any = print) -> None:
    """Installs what is missing and makes the images; NoNodesError if that cannot be."""
    if os.geteuid() != 0:
        raise NoNodesError("Real nodes (kubelet, containerd) need root: run the tests as root.")
    wanted = missing()
    if wanted:
        if shutil.which("apt-get") is None:
            raise NoNodesError(
                f"Real nodes need {', '.join(wanted)}: install {', '.join(PACKAGES)}."
            )
        say(f"installing {', '.join(PACKAGES)}")
        _install()
    if missing():
        raise NoNodesError(f"apt-get installed no {', '.join(missing())}.")
    if int(_INOTIFY.read_text()) < _INSTANCES:
        _INOTIFY.write_text(str(_INSTANCES))
    images.pause()
    images.platform()


def _install() -> None:
    lock = build.cache_dir().parent / "packages.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        for words in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
            done = subprocess.run(
                ["apt-get", "-qq", *words], env=quiet, capture_output=True, text=True, check=False
            )
            if done.returncode:
                tail = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
                raise NoNodesError(f"apt-get {words[0]} failed:\n{tail}")


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Network:
    """Addresses that pods and nodes of one cluster reach each other under, without a switch: the
    machine routes between them."""

    def __init__(self, nodes: int) -> None:
        taken = _addresses_of_the_machine()
        while True:
            base = ipaddress.ip_network(
                f"10.{random.randint(200, 249)}.{random.randrange(0, 256, 8)}.0/21"
            )
            if not any(address in base for address in taken):
                break
        subnets = list(base.subnets(new_prefix=24))
        self.link = f"wl{secrets.token_hex(4)}"
        self.addresses = [str(subnets[0][number + 1]) for number in range(nodes)]
        """Of the nodes. Pods reach what listens there, on the machine itself."""
        self.pods = [str(subnet) for subnet in subnets[1 : nodes + 1]]
        run_at_exit(_clean_command(link=self.link))
        _ip("link", "add", self.link, "type", "veth", "peer", "name", f"{self.link}p")
        for address in self.addresses:
            _ip("addr", "add", f"{address}/32", "dev", self.link)
        for end in (self.link, f"{self.link}p"):
            _ip("link", "set", end, "up")

    def close(self) -> None:
        clean(link=self.link)


class Node:
    """One node: its namespaces, containerd and kubelet."""

    def __init__(self, plane: ControlPlane, name: str, address: str, pods: str) -> None:
        self.name = name
        self.address = address
        self._plane = plane
        self._pods = pods
        self.directory = Path(tempfile.mkdtemp(prefix=f"windlass-{name}-"))
        self.cgroup = self.directory.name
        run_at_exit(_clean_command(cgroup=self.cgroup))
        remove_at_exit(self.directory)
        self._init = Process("node", self._init_command(), self.directory / "node.log")
        self.containerd: Process | None = None
        self.kubelet: Process | None = None

    def start(self) -> None:
        """Starts everything; `wait_ready` returns when the node takes pods."""
        for controller in _controllers():
            (controller / self.cgroup).mkdir(exist_ok=True)
        self._init.start()
        self._init.wait_ready((self.directory / "ready").exists)
        self.start_containerd()
        for archive in (images.pause(), images.platform()):
            self.load(archive)
        self.start_kubelet()

    def wait_ready(self) -> None:
        if self.kubelet is None:
            raise RuntimeError(f"kubelet of {self.name} was not started")
        self.kubelet.wait_ready(self._is_ready, seconds=90)

    def start_containerd(self) -> None:
        self._write_containerd_files()
        command = ["containerd", "--config", str(self._file("containerd.toml"))]
        self.containerd = self._inside("containerd", command)
        self.containerd.wait_ready(lambda: self._ctr("version").returncode == 0)

    def start_kubelet(self) -> None:
        """Also after it was killed: it finds its pods again."""
        self._write_kubelet_files()
        user = f"system:node:{self.name}"
        kubeconfig = self._plane.certificate_kubeconfig(user, ["system:nodes"])
        command = [
            str(build.binary("kubelet")), f"--config={self._file('kubelet.json')}",
            f"--kubeconfig={kubeconfig}", "--root-dir=/var/lib/kubelet",
            "--cert-dir=/var/lib/kubelet/pki", f"--hostname-override={self.name}",
            f"--node-ip={self.address}", "--v=2",
        ]  # fmt: skip
        self.kubelet = self._inside("kubelet", command)

    def load(self, archive: Path) -> None:
        """Gives the node an image from a docker-archive."""
        done = self._ctr("images", "import", str(archive))
        if done.returncode:
            raise RuntimeError(f"containerd refused {archive}: {done.stdout}{done.stderr}")

    def path(self, inside: str) -> Path:
        """Where a path below /var/lib, /var/log or /run of the node is on the machine."""
        for own in node_init.OWN:
            if inside.startswith(own + "/"):
                return self.directory / own.strip("/").replace("/", "-") / inside[len(own) + 1 :]
        raise ValueError(f"{inside} is not the node's own: {', '.join(node_init.OWN)} are")

    def pause(self) -> None:
        """The node falls silent: its kubelet hangs, its pods run on."""
        if self.kubelet:
            self.kubelet.send(signal.SIGSTOP)

    def resume(self) -> None:
        if self.kubelet:
            self.kubelet.send(signal.SIGCONT)

    def stop(self) -> None:
        """As if the power was cut: everything that ran there is gone."""
        for process in (self.kubelet, self.containerd, self._init):
            if process is not None:
                process.kill()
        clean(cgroup=self.cgroup)
        shutil.rmtree(self.directory, ignore_errors=True)

    # --- helpers

    def _init_command(self) -> list[str | Path]:
        return [
            "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
            sys.executable, node_init.__file__, self.directory,
        ]  # fmt: skip

    def _inside(self, name: str, command: Sequence[str]) -> Process:
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children")
        first = children.read_text().split()[0]
        log = self.directory / f"{name}.log"
        environment = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        made = Process(
            f"{name} of {self.name}",
            ["nsenter", "-t", first, "--mount", "--pid", *command],
            log,
            environment,
        )
        made.start()
        return made

    def _ctr(self, *words: str) -> subprocess.CompletedProcess[str]:
        socket = self.path("/run/containerd/containerd.sock")
        return subprocess.run(
            ["ctr", "-a", str(socket), "-n", "k8s.io", *words],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def _file(self, name: str) -> Path:
        return self.directory / name

    def _is_ready(self) -> bool:
        answer = self._plane.rest.get(f"/api/v1/nodes/{self.name}")
        if answer.status != 200:
            return False
        node = answer.json
        ready = {"type": "Ready", "status": "True"}
        conditions = node["status"].get("conditions", ())
        return any(ready.items() <= each.items() for each in conditions) and not node["spec"].get(
            "taints"
        )

    def _write_containerd_files(self) -> None:
        self._file("containerd.toml").write_text(f"""\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PAUSE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{_CNI}"
    conf_dir = "{self.directory}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
        BinaryName = "{_program("runc")}"
""")
        plugins = [
            {
                "type": "ptp",
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": self._pods}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": "/var/lib/cni-addresses",
                },
            },
            {"type": "loopback"},
        ]
        network = {"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}
        folder = self.directory / "cni"
        folder.mkdir(exist_ok=True)
        (folder / "10-pods.conflist").write_text(json.dumps(network))

    def _write_kubelet_files(self) -> None:
        configuration = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._plane.ca_file)},
            },
            "authorization": {"mode": "Webhook"},
            "failSwapOn": False,
            "address": self.address,
            "port": _KUBELET_PORT,
            "readOnlyPort": 0,
            "healthzPort": 0,
            "enforceNodeAllocatable": [],
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "0%",
                "imagefs.available": "0%",
                "nodefs.inodesFree": "0%",
            },
            "makeIPTablesUtilChains": False,
            "imageGCHighThresholdPercent": 100,
            "imageMinimumGCAge": "0s",
            "resolvConf": "",
            "syncFrequency": "10s",
            "nodeStatusReportFrequency": "10s",
            "shutdownGracePeriod": "0s",
        }
        self._file("kubelet.json").write_text(json.dumps(configuration))


class Cluster(Stoppable):
    """A control plane with real nodes `node-0`, `node-1` ..."""

    def __init__(self, network: Network, plane: ControlPlane, nodes: list[Node]) -> None:
        self.network = network
        self.plane = plane
        self.nodes = nodes

    @classmethod
    def start(cls, nodes: int = 1, **options: Any) -> Cluster:
        """Nodes that take pods; options as of ControlPlane.start."""
        if nodes > _NODES_AT_MOST:
            raise ValueError(f"{nodes} nodes: at most {_NODES_AT_MOST}")
        ensure()
        with contextlib.ExitStack() as undo:
            network = Network(nodes)
            undo.callback(network.close)
            plane = ControlPlane.start(addresses=network.addresses, kubelets=True, **options)
            undo.callback(plane.stop)
            made = [
                Node(plane, f"node-{number}", address, pods)
                for number, (address, pods) in enumerate(
                    zip(network.addresses, network.pods, strict=True)
                )
            ]
            for node in made:
                undo.callback(node.stop)
                node.start()
            for node in made:
                node.wait_ready()
            undo.pop_all()
            return cls(network, plane, made)

    @property
    def address(self) -> str:
        """Where pods reach what listens on this machine."""
        return self.network.addresses[0]

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()
        self.plane.stop()
        self.network.close()


# --- cleaning up ----------------------------------------------------------------------------------


def clean(*, cgroup: str = "", link: str = "") -> None:
    """Removes what outlives the processes of a node. May be called twice."""
    if link:
        subprocess.run(["ip", "link", "del", link], capture_output=True, check=False)
    if cgroup:
        deadline = time.monotonic() + 20
        while not all(_removed(controller / cgroup) for controller in _controllers()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"cgroups {cgroup} do not empty")
            time.sleep(0.05)


def _removed(group: Path) -> bool:
    """Whether a cgroup and those below are gone; processes that are dying hold them for a while."""
    for place, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):
            for pid in (Path(place) / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.rmdir(place)
    return not group.exists()


def _controllers() -> list[Path]:
    """Each hierarchy of cgroup v1, or the one of v2."""
    return [path for path in _CGROUPS.iterdir() if (path / "cgroup.procs").exists()] or [_CGROUPS]


def _clean_command(**what: str) -> list[str]:
    words = [f"--{name}={value}" for name, value in what.items()]
    return [sys.executable, "-m", "tests.harness.kubelet", *words]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _addresses_of_the_machine() -> list[Any]:
    listed = subprocess.run(["ip", "-j", "addr"], check=True, capture_output=True, text=True)
    return [
        ipaddress.ip_address(address["local"])
        for link in json.loads(listed.stdout)
        for address in link.get("addr_info", ())
    ]


def main(words: list[str]) -> int:
    given = dict(word.removeprefix("--").split("=", 1) for word in words)
    if given:
        clean(**given)
        return 0
    try:
        ensure(lambda text: print(text, flush=True))
    except (NoNodesError, build.BuildError) as problem:
        print(problem, file=sys.stderr)
        return 1 if os.environ.get("CI") == "true" else 0
    print(f"containerd, runc and CNI plug-ins are there; images are in {images.cache_dir()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
