"""Credential plug-ins: real programs, their input, and the messages when they fail."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import os
import pathlib
from typing import Any

import pytest

from windlass.store import errors
from windlass.store.kubernetes.config import exec_plugin
from windlass.store.kubernetes.config.model import (
    Access,
    Cluster,
    ExecPlugin,
    ExecVariable,
    Extension,
)
from windlass.store.kubernetes.config.model import User as KubeUser

V1, V1BETA1 = exec_plugin.API_VERSIONS


def credential(version: str = V1, **status: Any) -> str:
    return json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})


def program(output: str = "", *, then: str = "", version: str = V1, **options: Any) -> ExecPlugin:
    """A shell that prints `output` and then does `then`."""
    command = f"printf %s '{output}'; {then}"
    options.setdefault("interactive_mode", "Never")
    return ExecPlugin(api_version=version, command="sh", args=["-c", command], **options)


def credentials(chosen: ExecPlugin, **options: Any) -> exec_plugin.PluginCredentials:
    cluster = Cluster(
        server="https://s:1",
        certificate_authority_data=base64.b64encode(b"pem").decode(),
        extensions=[Extension(name="client.authentication.k8s.io/exec", extension={"a": 1})],
    )
    return exec_plugin.PluginCredentials(Access(cluster, KubeUser(exec=chosen)), chosen, **options)


@pytest.mark.parametrize("version", exec_plugin.API_VERSIONS)
async def test_both_versions_of_the_protocol(version: str) -> None:
    chosen = program(credential(version, token="secret"), version=version)
    assert (await credentials(chosen).current()).authorization == "Bearer secret"


async def test_what_the_program_receives(tmp_path: pathlib.Path) -> None:
    told, variable = tmp_path / "told", tmp_path / "variable"
    chosen = program(
        credential(token="t"),
        then=f'printf %s "$KUBERNETES_EXEC_INFO" > {told}; printf %s "$PROFILE" > {variable}',
        provide_cluster_info=True,
        env=[ExecVariable(name="PROFILE", value="mine")],
    )
    await credentials(chosen).current()
    assert json.loads(told.read_text()) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {
                "server": "https://s:1",
                "certificate-authority-data": base64.b64encode(b"pem").decode(),
                "config": {"a": 1},
            },
        },
    }
    assert variable.read_text() == "mine"


async def test_the_cluster_is_passed_only_when_asked_for(tmp_path: pathlib.Path) -> None:
    told = tmp_path / "told"
    chosen = program(credential(token="t"), then=f'printf %s "$KUBERNETES_EXEC_INFO" > {told}')
    await credentials(chosen).current()
    assert json.loads(told.read_text())["spec"] == {"interactive": False}


async def test_it_runs_again_when_expired_or_refused_and_only_then(tmp_path: pathlib.Path) -> None:
    runs = tmp_path / "runs"
    expiry = "2030-01-01T00:00:00.123456789Z"
    chosen = program(credential(token="t", expirationTimestamp=expiry), then=f"echo >> {runs}")
    now = [datetime.datetime(2029, 12, 31, tzinfo=datetime.UTC)]
    source = credentials(chosen, now=lambda: now[0])

    def count() -> int:
        return len(runs.read_text())

    first = await source.current()
    await asyncio.gather(*(source.current() for _ in range(5)))
    assert count() == 1
    now[0] = datetime.datetime(2030, 1, 2, tzinfo=datetime.UTC)
    await source.current()
    assert count() == 2
    now[0] = datetime.datetime(2029, 1, 1, tzinfo=datetime.UTC)
    assert await source.renew(first)
    await source.current()
    assert count() == 3


async def test_many_requests_at_once_run_it_once(tmp_path: pathlib.Path) -> None:
    runs = tmp_path / "runs"
    source = credentials(program(credential(token="t"), then=f"echo >> {runs}"))
    await asyncio.gather(*(source.current() for _ in range(10)))
    assert len(runs.read_text()) == 1


FAILURES = {
    "not installed": (
        ExecPlugin(
            api_version=V1, command="no-such-login", interactive_mode="Never",
            install_hint="get it from https://example.org",
        ),
        "no-such-login.*no such file.*get it from https://example.org",
    ),
    "exit code": (program(then="echo please log in >&2; exit 3"), "exit code 3: please log in"),
    "no JSON": (program("hello"), "printed no ExecCredential"),
    "another version": (program(credential(V1BETA1, token="t")), "not client.*/v1 ExecCredential"),
    "nothing in it": (program(credential()), "neither a token nor a client certificate"),
    "half a certificate": (program(credential(clientCertificateData="c")), "without its key"),
    "expiry": (program(credential(token="t", expirationTimestamp="soon")), "not RFC 3339"),
    "removed version": (
        program(version="client.authentication.k8s.io/v1alpha1"), "v1alpha1.* is not one of",
    ),
    "no mode": (program(credential(token="t"), interactive_mode=""), "must be Never, IfAvail"),
    "needs a terminal": (program(interactive_mode="Always"), "needs a terminal"),
}  # fmt: skip


@pytest.mark.parametrize(("chosen", "message"), FAILURES.values(), ids=FAILURES)
async def test_a_failure_says_what_to_do(chosen: ExecPlugin, message: str) -> None:
    with pytest.raises(errors.Unauthorized, match=f"(?i){message}") as failed:
        await credentials(chosen).current()
    assert "\n" not in failed.value.message


async def test_a_program_that_never_ends_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(exec_plugin, "_TIME_LIMIT", 1.0)
    pid = tmp_path / "pid"
    with pytest.raises(errors.Unauthorized, match="no output within"):
        await credentials(program(then=f"echo $$ > {pid}; exec sleep 1000")).current()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


async def test_the_kubeconfig_s_certificate_goes_with_a_plug_in_s_token() -> None:
    chosen = program(credential(token="t"))
    pair = [base64.b64encode(part).decode() for part in (b"chain", b"key")]
    user = KubeUser(exec=chosen, client_certificate_data=pair[0], client_key_data=pair[1])
    source = exec_plugin.PluginCredentials(Access(Cluster(), user), chosen)
    assert (await source.current()).certificate == (b"chain", b"key")
