"""Our identity at a real kube-apiserver: tokens that rotate, certificates, plug-ins, and what we
trust.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import shlex
import sys
from typing import Any

import msgspec
import pytest
import yaml

from tests.harness.control_plane import ControlPlane
from tests.harness.processes import free_ports
from windlass.kinds.types.core import ConfigMap, ServiceAccount
from windlass.kinds.types.meta import ObjectMeta
from windlass.store import connect, errors
from windlass.store.kubernetes.client import KubernetesStore
from windlass.store.kubernetes.config import credentials, incluster
from windlass.store.kubernetes.http.proxy_transport import ProxyTransport

pytestmark = pytest.mark.kubernetes


async def whoami(store: KubernetesStore) -> str:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    status, _, body = await store.raw("POST", path, body=msgspec.json.encode(review))
    if status >= 300:
        raise errors.from_status(json.loads(body), status)
    return str(json.loads(body)["status"]["userInfo"]["username"])


async def test_refusals_are_typed(control_plane: ControlPlane, tmp_path: pathlib.Path) -> None:
    stranger = connect.open_store(str(control_plane.token_kubeconfig("alice")))
    with pytest.raises(errors.Forbidden, match="alice"):
        await stranger.get(ConfigMap, "a", "default")
    await stranger.close()
    nobody = with_user(control_plane, tmp_path, {"token": "wrong"})
    with pytest.raises(errors.Unauthorized):
        await nobody.get(ConfigMap, "a", "default")
    await nobody.close()


def with_user(
    plane: ControlPlane, folder: pathlib.Path, user: dict[str, Any], **cluster: Any
) -> KubernetesStore:
    """A store on the control plane as another user, or by another way."""
    content = yaml.safe_load(plane.kubeconfig.read_text())
    content["users"][0]["user"] = user
    content["clusters"][0]["cluster"] |= cluster
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return connect.open_store(str(path))


async def test_client_certificates(control_plane: ControlPlane) -> None:
    path = control_plane.certificate_kubeconfig("carol", ["system:masters"])
    store = connect.open_store(str(path))
    assert await whoami(store) == "carol"
    await store.close()


async def test_impersonation_of_another_user(
    control_plane: ControlPlane, tmp_path: pathlib.Path
) -> None:
    user = {"token": control_plane.admin_token, "as": "dave", "as-groups": ["g1", "g2"]}
    store = with_user(control_plane, tmp_path, user)
    assert await whoami(store) == "dave"
    await store.close()


async def test_the_name_in_the_certificate_may_differ_from_the_address(
    control_plane: ControlPlane, tmp_path: pathlib.Path
) -> None:
    user = {"token": control_plane.admin_token}
    right = with_user(control_plane, tmp_path, user, **{"tls-server-name": "localhost"})
    assert await whoami(right) == "admin"
    await right.close()
    wrong = with_user(control_plane, tmp_path, user, **{"tls-server-name": "elsewhere"})
    with pytest.raises(
        errors.Unavailable, match=r"certificate of https://127.0.0.1:.* not trusted"
    ):
        await whoami(wrong)
    await wrong.close()


async def test_a_server_whose_authority_is_unknown_is_not_trusted(
    control_plane: ControlPlane, tmp_path: pathlib.Path
) -> None:
    user = {"token": control_plane.admin_token}
    store = with_user(control_plane, tmp_path, user, **{"certificate-authority": None})
    with pytest.raises(errors.Unavailable, match=r"not trusted.*certificate-authority"):
        await whoami(store)
    await store.close()
    unchecked = with_user(
        control_plane,
        tmp_path,
        user,
        **{"certificate-authority": None, "insecure-skip-tls-verify": True},
    )
    assert await whoami(unchecked) == "admin"
    await unchecked.close()


async def test_a_server_that_is_away_is_named(
    control_plane: ControlPlane, tmp_path: pathlib.Path
) -> None:
    (port,) = free_ports(1)
    address = f"https://127.0.0.1:{port}"
    store = with_user(control_plane, tmp_path, {"token": "t"}, server=address)
    with pytest.raises(errors.Unavailable, match=f"{address}: .*refused.*check that the server"):
        await store.get(ConfigMap, "a", "default")
    await store.close()


async def test_the_way_may_lead_through_a_proxy(
    control_plane: ControlPlane, tmp_path: pathlib.Path
) -> None:
    asked: list[bytes] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        host, port = control_plane.url.removeprefix("https://").split(":")
        there, forth = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(carry(reader, forth), carry(there, writer))

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            sink.write(data)
        sink.close()

    async with await asyncio.start_server(tunnel, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        user = {"token": control_plane.admin_token}
        url = f"http://127.0.0.1:{port}"
        store = with_user(control_plane, tmp_path, user, **{"proxy-url": url})
        assert await whoami(store) == "admin"
        await store.close()
    assert asked[0].startswith(b"CONNECT 127.0.0.1:")
    with pytest.raises(errors.Unavailable, match=r"proxy 127.0.0.1:\d+ for https://"):
        await whoami(store)
    await store.close()


async def test_a_pod_s_token_is_read_again_when_it_rotates(
    control_plane: ControlPlane, tmp_path: pathlib.Path
) -> None:
    """As a kubelet keeps it: the folder of a service account whose token file is replaced."""
    admin = connect.open_store(str(control_plane.kubeconfig))
    tokens = {name: await service_account_token(admin, name) for name in ("old", "new")}
    await admin.close()
    token_file = tmp_path / "token"
    token_file.write_text(tokens["old"])
    (tmp_path / "ca.crt").write_bytes(control_plane.ca_file.read_bytes())
    (tmp_path / "namespace").write_text("default")
    host, port = control_plane.url.removeprefix("https://").split(":")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    access = incluster.access(environ, tmp_path)
    now = [0.0]
    rotating = credentials.ConfiguredCredentials(access, clock=lambda: now[0])
    inside = KubernetesStore(access, ProxyTransport(access, rotating))
    assert inside.access.namespace == "default"
    assert await whoami(inside) == "system:serviceaccount:default:old"

    token_file.write_text(tokens["new"])
    now[0] += 30
    assert await whoami(inside) == "system:serviceaccount:default:old"
    now[0] += 30
    assert await whoami(inside) == "system:serviceaccount:default:new"

    token_file.write_text("expired")
    now[0] += 60
    with pytest.raises(errors.Unauthorized):
        await whoami(inside)
    token_file.write_text(tokens["old"])  # the clock stands still: the refusal makes us look
    assert await whoami(inside) == "system:serviceaccount:default:old"
    await inside.close()


async def service_account_token(store: KubernetesStore, name: str) -> str:
    await store.create(ServiceAccount(metadata=ObjectMeta(name=name, namespace="default")))
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = await store.create_subresource(ServiceAccount, name, "default", "token", request)
    return str(answer["status"]["token"])


async def test_a_credential_plug_in_runs_again_when_it_must(
    control_plane: ControlPlane, tmp_path: pathlib.Path
) -> None:
    """A real program: its first token is refused, its second has expired, its third lasts."""
    runs = tmp_path / "runs"
    answers = [
        {"token": "refused"},
        {"token": control_plane.tokens["alice"], "expirationTimestamp": "2020-01-01T00:00:00Z"},
        {"token": control_plane.tokens["bob"], "expirationTimestamp": "2099-01-01T00:00:00Z"},
    ]
    store = with_user(control_plane, tmp_path, {"exec": plugin(tmp_path, runs, answers)})
    assert await whoami(store) == "alice"
    assert runs.read_text().count("run") == 2
    assert await whoami(store) == "bob"
    assert await whoami(store) == "bob"
    assert runs.read_text().count("run") == 3
    await store.close()


async def test_a_credential_plug_in_may_give_a_certificate(
    control_plane: ControlPlane, tmp_path: pathlib.Path
) -> None:
    issued = yaml.safe_load(control_plane.certificate_kubeconfig("erin").read_text())
    user = {"exec": plugin(tmp_path, tmp_path / "runs", [contents(issued["users"][0]["user"])])}
    store = with_user(control_plane, tmp_path, user)
    assert await whoami(store) == "erin"
    await store.close()


def contents(files: dict[str, str]) -> dict[str, str]:
    return {
        "clientCertificateData": pathlib.Path(files["client-certificate"]).read_text(),
        "clientKeyData": pathlib.Path(files["client-key"]).read_text(),
    }


def plugin(folder: pathlib.Path, runs: pathlib.Path, answers: list[dict[str, Any]]) -> Any:
    """A program that prints the next answer each time it runs."""
    version = "client.authentication.k8s.io/v1"
    printed = [
        {"apiVersion": version, "kind": "ExecCredential", "status": answer} for answer in answers
    ]
    (folder / "answers.json").write_text(json.dumps(printed))
    script = folder / "login"
    script.write_text(
        f"#!{shlex.quote(sys.executable)}\n"
        "import json, sys\n"
        f"runs = open({str(runs)!r}, 'a+')\n"
        "runs.seek(0)\n"
        "number = runs.read().count('run')\n"
        "runs.write('run')\n"
        f"print(json.dumps(json.load(open({str(folder / 'answers.json')!r}))[number]))\n"
    )
    script.chmod(0o700)
    return {"apiVersion": version, "command": "./login", "interactiveMode": "Never"}
