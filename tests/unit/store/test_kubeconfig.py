"""Reading kubeconfigs as kubectl does, choosing a server, and adding a context to a file."""

from __future__ import annotations

import base64
import dataclasses
import os
import pathlib
import stat
import tempfile
from typing import Any

import pytest
import yaml

from windlass.store import connect
from windlass.store.kubernetes.config import incluster, kubeconfig
from windlass.store.kubernetes.config.model import Access, Cluster, KubeconfigError, User
from windlass.store.kubernetes.http import request_headers


def config(*names: str, current: str = "", **user: Any) -> dict[str, Any]:
    """A kubeconfig with a cluster, user and context for each name."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": n, "cluster": {"server": f"https://{n}:6443"}} for n in names],
        "users": [{"name": n, "user": user or {"token": f"{n}-token"}} for n in names],
        "contexts": [{"name": n, "context": {"cluster": n, "user": n}} for n in names],
        "current-context": current,
    }


def write(path: pathlib.Path, content: dict[str, Any]) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content))
    return path


def read(*paths: pathlib.Path, context: str | None = None) -> Access:
    return kubeconfig.select(kubeconfig.load(paths, must_exist=True), context)


def test_the_current_context_is_used_unless_another_is_named(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "config", config("a", "b", current="b"))
    assert read(path).address == "https://b:6443"
    chosen = read(path, context="a")
    assert (chosen.address, chosen.user.token, chosen.namespace) == (
        "https://a:6443", "a-token", "default",
    )  # fmt: skip


def test_of_several_files_the_first_that_names_something_counts(tmp_path: pathlib.Path) -> None:
    first = config("a", current="")
    second = config("a", "b", current="b")
    second["clusters"][0]["cluster"]["server"] = "https://other:6443"
    third = config("c", current="c")
    paths = [write(tmp_path / str(i), content) for i, content in enumerate((first, second, third))]
    merged = kubeconfig.load([tmp_path / "missing", *paths])
    assert merged.clusters["a"].server == "https://a:6443"
    assert sorted(merged.contexts) == ["a", "b", "c"]
    assert merged.current_context == "b"


def test_relative_paths_are_relative_to_the_file_they_stand_in(tmp_path: pathlib.Path) -> None:
    content = config("a", current="a", tokenFile="t", **{"client-certificate": "../c.crt"})
    content["users"][0]["user"]["client-key"] = "/abs/c.key"
    content["users"][0]["user"]["exec"] = {"apiVersion": "x", "command": "./bin/login"}
    content["clusters"][0]["cluster"]["certificate-authority"] = "ca.crt"
    access = read(write(tmp_path / "here" / "config", content))
    folder = tmp_path / "here"
    assert access.cluster.certificate_authority == str(folder / "ca.crt")
    assert access.user.token_file == str(folder / "t")
    assert access.user.client_certificate == str(folder / "../c.crt")
    assert access.user.client_key == "/abs/c.key"
    assert access.user.exec is not None
    assert access.user.exec.command == str(folder / "bin/login")


def test_a_plug_in_without_a_slash_is_searched_in_path(tmp_path: pathlib.Path) -> None:
    content = config("a", current="a", exec={"apiVersion": "x", "command": "login"})
    plugin = read(write(tmp_path / "c", content)).user.exec
    assert plugin is not None
    assert plugin.command == "login"


def test_every_field_is_read(tmp_path: pathlib.Path) -> None:
    content = config(
        "a",
        current="a",
        username="u",
        password="p",
        **{"as": "bob", "as-uid": "7", "as-groups": ["g"], "as-user-extra": {"k": ["v"]}},
    )
    content["clusters"][0]["cluster"] |= {
        "certificate-authority-data": base64.b64encode(b"pem").decode(),
        "tls-server-name": "api.internal",
        "proxy-url": "http://proxy:3128",
    }
    content["contexts"][0]["context"]["namespace"] = "team"
    access = read(write(tmp_path / "c", content))
    assert access.namespace == "team"
    assert access.cluster.tls_server_name == "api.internal"
    assert request_headers.proxy(access) == "http://proxy:3128"
    assert (access.user.username, access.user.password) == ("u", "p")
    assert request_headers.impersonation(access.user) == [
        ("Impersonate-User", "bob"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "g"),
        ("Impersonate-Extra-k", "v"),
    ]


def test_empty_sections_as_kubectl_writes_them_are_accepted(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "c"
    path.write_text(
        "apiVersion: v1\nclusters: null\ncontexts: null\nusers: null\npreferences: {}\n"
    )
    assert kubeconfig.load([path]).contexts == {}


def broken(change: dict[str, Any], where: str = "cluster") -> dict[str, Any]:
    content = config("a", current="a")
    content[f"{where}s"][0][where] |= change
    return content


BROKEN = {
    "no current context": (config("a"), "no current-context.*--context.*a"),
    "unknown context": (config("a", current="b"), 'context "b" is not in .*it has: a'),
    "unknown cluster": (broken({"cluster": "x"}, "context"), 'cluster "x"'),
    "unknown user": (broken({"user": "x"}, "context"), 'user "x"'),
    "server without a scheme": (broken({"server": "host:6443"}), "must begin with https://"),
    "server is a number": (broken({"server": 1}), r"Expected `str`.*clusters\[0\]"),
    "CA and insecure": (
        broken({"insecure-skip-tls-verify": True, "certificate-authority": "x"}),
        "insecure-skip-tls-verify; remove one",
    ),
    "CA is not base64": (broken({"certificate-authority-data": "@@"}), "not base64"),
    "SOCKS proxy": (broken({"proxy-url": "socks5://x"}), "only http:// and https://"),
    "certificate without key": (broken({"client-certificate": "x"}, "user"), "client-key"),
    "removed auth-provider": (broken({"auth-provider": {"name": "gcp"}}, "user"), "exec plug-in"),
    "groups without a user": (broken({"as-groups": ["g"]}, "user"), "set `as` too"),
}


@pytest.mark.parametrize(("content", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_kubeconfig_is_refused_with_the_remedy(
    tmp_path: pathlib.Path, content: dict[str, Any], message: str
) -> None:
    with pytest.raises(KubeconfigError, match=message):
        read(write(tmp_path / "c", content))


@pytest.mark.parametrize(
    ("text", "message"), [("a: [", "is not YAML"), ("- a", "not a mapping"), (None, "not exist")]
)
def test_a_file_that_is_no_kubeconfig_is_refused(
    tmp_path: pathlib.Path, text: str | None, message: str
) -> None:
    path = tmp_path / "c"
    if text is not None:
        path.write_text(text)
    with pytest.raises(KubeconfigError, match=message):
        read(path)


# --- writing ------------------------------------------------------------------------------------


def test_a_file_of_another_user_is_reported_with_the_user_to_ask(tmp_path: pathlib.Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "kubeconfig").write_text("{}")
    closed.chmod(0)
    me = os.geteuid()
    os.seteuid(me or 65534)  # nothing is closed to root
    try:
        with pytest.raises(KubeconfigError, match="Permission denied; ask the administrator"):
            connect.find_access(str(closed / "kubeconfig"))
        with pytest.raises(KubeconfigError, match="Permission denied; ask the administrator"):
            connect.find_access(environ={"WINDLASS_STATE": str(closed)})
    finally:
        os.seteuid(me)


def test_a_context_is_added_without_losing_anything(tmp_path: pathlib.Path) -> None:
    content = config("a", current="a") | {"preferences": {"colors": True}, "x-unknown": [1]}
    path = write(tmp_path / "config", content)
    path.chmod(0o644)
    kubeconfig.merge_context(
        path, "windlass", {"server": "https://w:1"}, {"token": "t"}, namespace="n"
    )
    written = yaml.safe_load(path.read_text())
    for section in ("clusters", "users", "contexts"):
        assert written[section][0] == content[section][0]
        assert [entry["name"] for entry in written[section]] == ["a", "windlass"]
    assert (written["preferences"], written["x-unknown"]) == ({"colors": True}, [1])
    assert written["current-context"] == "a"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["config"]
    access = read(path, context="windlass")
    assert (access.address, access.user.token, access.namespace) == ("https://w:1", "t", "n")


def test_a_context_is_replaced_when_added_again(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "new" / "config"
    for port in (1, 2):
        server = {"server": f"https://w:{port}"}
        kubeconfig.merge_context(path, "windlass", server, {"token": str(port)})
    written = yaml.safe_load(path.read_text())
    assert [entry["name"] for entry in written["clusters"]] == ["windlass"]
    access = read(path)
    assert (access.address, access.user.token) == ("https://w:2", "2")


def test_it_becomes_current_only_when_asked_for_or_when_there_is_none(
    tmp_path: pathlib.Path,
) -> None:
    path = write(tmp_path / "config", config("a", current="a"))
    kubeconfig.merge_context(path, "w", {"server": "https://w"}, {}, make_current=True)
    assert kubeconfig.load([path]).current_context == "w"


COMMENTED = """\
# my clusters
apiVersion: v1
kind: Config
current-context: work  # do not touch
users:
- name: w
  user: {token: t}
clusters:
  # the one in the basement
  - cluster:
      server: https://w
    name: w
  # the end of the clusters
contexts: [{name: work, context: {cluster: w, user: w}}]
preferences: {}
# the end
"""


_CONTEXTS = "[{name: work, context: {cluster: w, user: w}}]"


@pytest.mark.parametrize(
    "text",
    [
        COMMENTED,
        COMMENTED.rstrip("\n"),
        COMMENTED.replace("preferences: {}\n# the end\n", ""),
        COMMENTED.replace(_CONTEXTS, ""),
        "# nothing yet\n",
    ],
)
def test_comments_and_order_of_a_file_stay(tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    for port in ("1", "2"):
        kubeconfig.merge_context(path, "x", {"server": f"https://x:{port}"}, {"token": port})
        written = path.read_text()
        lines = [line for line in written.splitlines() if f"https://x:{port}" not in line]
        left = [line for line in text.splitlines() if not line.startswith("contexts:")]
        assert [line for line in lines if line in left] == left
        assert read(path, context="x").address == f"https://x:{port}"
    assert written.count('"x"') == 5 + (text == "# nothing yet\n")
    if _CONTEXTS in text:
        assert read(path, context="work").address == "https://w"


def test_a_file_whose_text_cannot_be_edited_is_left_alone(tmp_path: pathlib.Path) -> None:
    text = "a: &a []\nclusters: *a\nusers: *a\n"
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(KubeconfigError, match="nothing was changed"):
        kubeconfig.merge_context(path, "x", {"server": "https://x"}, {})
    assert path.read_text() == text


def test_a_symlink_stays_a_symlink(tmp_path: pathlib.Path) -> None:
    real = write(tmp_path / "real", config("a", current="a"))
    link = tmp_path / "link"
    link.symlink_to(real)
    kubeconfig.merge_context(link, "w", {"server": "https://w"}, {})
    assert link.is_symlink()
    assert "w" in kubeconfig.load([real]).contexts


def test_a_file_that_kubectl_is_writing_is_left_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "config", config("a", current="a"))
    before = path.read_bytes()
    (tmp_path / "config.lock").touch()
    monkeypatch.setattr(kubeconfig, "_LOCK_WAIT", 0)
    with pytest.raises(KubeconfigError, match=r"remove .*config\.lock"):
        kubeconfig.merge_context(path, "w", {"server": "https://w"}, {})
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_understood_is_left_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "config"
    path.write_text("clusters: {a: b}\n")
    with pytest.raises(KubeconfigError, match=r"clusters .* is not a list"):
        kubeconfig.merge_context(path, "w", {"server": "https://w"}, {})
    assert path.read_text() == "clusters: {a: b}\n"
    assert [p.name for p in tmp_path.iterdir()] == ["config"]


# --- choosing -----------------------------------------------------------------------------------


@dataclasses.dataclass
class Machine:
    """A home folder with any of the places a server may be named in."""

    home: pathlib.Path

    def find(self, explicit: str | None = None, context: str | None = None, **env: str) -> Access:
        return connect.find_access(
            explicit, context, environ={"HOME": str(self.home), **env}, service_account=self.pod,
            root=self.home,
        )  # fmt: skip

    @property
    def pod(self) -> pathlib.Path:
        return self.home / "serviceaccount"

    def put(self, place: str, name: str) -> str:
        return str(write(self.home / place, config(name, current=name)))

    def put_pod(self) -> None:
        self.pod.mkdir()
        for file, text in (("token", "t\n"), ("ca.crt", "pem"), ("namespace", "team\n")):
            (self.pod / file).write_text(text)


@pytest.fixture
def machine(tmp_path: pathlib.Path) -> Machine:
    return Machine(tmp_path)


def test_the_order_of_places(machine: Machine) -> None:
    machine.put_pod()
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    explicit, env, own = (machine.put(f"{n}.yaml", n) for n in ("explicit", "env", "own"))
    assert machine.find(**pod).context == "in-cluster"
    machine.put(".kube/config", "kube")
    assert machine.find(**pod).context == "kube"
    machine.put(".windlass/kubeconfig", "up")
    assert machine.find(**pod).context == "up"
    assert machine.find(**pod, KUBECONFIG=env).context == "env"
    assert machine.find(**pod, KUBECONFIG=env, WINDLASS_KUBECONFIG=own).context == "own"
    assert machine.find(explicit, **pod, KUBECONFIG=env).context == "explicit"


@pytest.mark.parametrize("place", ["etc/rancher/k3s/k3s.yaml", "etc/kubernetes/admin.conf"])
def test_the_cluster_of_this_machine_is_the_last_choice(machine: Machine, place: str) -> None:
    machine.put(place, "here")
    assert machine.find().context == "here"
    machine.put(".kube/config", "kube")
    assert machine.find().context == "kube"


def test_a_local_cluster_that_only_root_may_use_is_reported_with_the_remedy() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is closed to others
        machine = Machine(pathlib.Path(folder))
        machine.home.chmod(0o755)
        pathlib.Path(machine.put("etc/rancher/k3s/k3s.yaml", "here")).chmod(0)
        me = os.geteuid()
        os.seteuid(me or 65534)  # nothing is closed to root
        try:
            with pytest.raises(KubeconfigError, match=r"k3s runs .* only root .*sudo install"):
                machine.find()
        finally:
            os.seteuid(me)


def test_the_state_folder_can_be_moved(machine: Machine) -> None:
    machine.put("elsewhere/kubeconfig", "moved")
    assert machine.find(WINDLASS_STATE=str(machine.home / "elsewhere")).context == "moved"


def test_a_server_of_windlass_up_that_is_away_is_started_with_windlass_up(machine: Machine) -> None:
    machine.put(".windlass/kubeconfig", "up")
    error = request_headers.unreachable(machine.find(), ConnectionRefusedError("refused"))
    assert "https://up:6443" in error.message
    assert "`windlass up`" in error.message


def test_a_named_context_is_looked_for_in_all_usual_places(machine: Machine) -> None:
    machine.put(".windlass/kubeconfig", "up")
    machine.put(".kube/config", "kube")
    assert machine.find(context="kube").address == "https://kube:6443"
    with pytest.raises(KubeconfigError, match="known: kube, up"):
        machine.find(context="other")


def test_one_clear_error_when_there_is_no_server(machine: Machine) -> None:
    with pytest.raises(KubeconfigError, match=r"no server found.*`windlass up`.*--kubeconfig"):
        machine.find()


def test_a_pod_knows_its_server_namespace_and_token(machine: Machine) -> None:
    machine.put_pod()
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    access = incluster.access(environ, machine.pod)
    assert access.address == "https://[fd00::1]:6443"
    assert access.namespace == "team"
    assert access.user.token_file == str(machine.pod / "token")
    assert access.cluster.certificate_authority == str(machine.pod / "ca.crt")


PROXIES = {
    "none": ({}, "https://api:6443", None),
    "by scheme": ({"https_proxy": "http://p:1"}, "https://api:6443", "http://p:1"),
    "other scheme": ({"http_proxy": "http://p:1"}, "https://api:6443", None),
    "never loopback": ({"https_proxy": "http://p:1"}, "https://127.0.0.1:6443", None),
    "excepted host": (
        {"https_proxy": "http://p:1", "no_proxy": "api"}, "https://api:6443", None,
    ),
    "excepted network": (
        {"https_proxy": "http://p:1", "no_proxy": "x,10.0.0.0/8"}, "https://10.1.2.3:6443", None,
    ),
    "another network": (
        {"https_proxy": "http://p:1", "no_proxy": "10.0.0.0/8"}, "https://11.1.2.3", "http://p:1",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("environ", "server", "expected"), PROXIES.values(), ids=PROXIES)
def test_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], server: str, expected: str | None
) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert request_headers.proxy(Access(Cluster(server=server), User())) == expected
