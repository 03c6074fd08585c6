"""What probes and Prometheus are answered, and that no client can keep the process busy."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request

import pytest

from windlass.control.runtime import health
from windlass.store import errors
from windlass.telemetry import prometheus


async def _ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


def _get(url: str | urllib.request.Request) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.headers["Content-Type"], refused.read().decode()


async def test_probes_are_answered() -> None:
    trouble = ["not yet"]
    async with health.answering("127.0.0.1", 0, lambda: trouble[0]) as port:
        url = f"http://127.0.0.1:{port}"
        assert (await asyncio.to_thread(_get, f"{url}/healthz"))[::2] == (200, "ok")
        assert (await asyncio.to_thread(_get, f"{url}/readyz?verbose"))[::2] == (503, "not yet")
        trouble[0] = ""
        assert (await asyncio.to_thread(_get, f"{url}/readyz"))[::2] == (200, "ok")
        for path in ("runs", "metrics"):
            assert (await asyncio.to_thread(_get, f"{url}/{path}"))[0] == 404


async def test_metrics_are_for_callers_who_are_admitted() -> None:
    registry = prometheus.Registry()
    registry.counter("windlass_things_total", "Things.").add()

    async def admit(authorization: str | None, path: str) -> None:
        if authorization is None:
            raise errors.Unauthorized("Unauthorized")
        if authorization == "Bearer away":
            raise ConnectionRefusedError("the cluster does not answer")
        if (authorization, path) != ("Bearer mine", "/metrics"):
            raise errors.Forbidden("you may not", details={})

    async with health.exposing("127.0.0.1", 0, registry, admit, None) as port:
        url = f"http://127.0.0.1:{port}"

        async def get(path: str, *token: str) -> tuple[int, str, str]:
            headers = {"AUTHORIZATION": f"Bearer {token[0]}"} if token else {}
            return await asyncio.to_thread(_get, urllib.request.Request(url + path, None, headers))

        assert (await get("/metrics"))[::2] == (401, "Unauthorized")
        assert (await get("/metrics", "other"))[::2] == (403, "you may not")
        assert (await get("/metrics", "away"))[::2] == (503, "the cluster does not answer")
        assert (await get("/healthz", "mine"))[0] == 404
        status, kind, text = await get("/metrics?all", "mine")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert text == registry.render()
        assert "windlass_things_total 1" in text


async def test_of_an_answer_to_head_only_the_head_is_sent() -> None:
    async with health.answering("127.0.0.1", 0, str) as port:
        said = await _ask(port, b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"Content-Length: 2\r\n" in said
    assert said.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("nonsense", [b"hello\r\n\r\n", b"GET /" + b"x" * 100_000 + b"\r\n\r\n"])
async def test_an_invalid_request_is_reported(nonsense: bytes) -> None:
    async with health.answering("127.0.0.1", 0, str) as port:
        assert (await _ask(port, nonsense)).startswith(b"HTTP/1.1 400 ")


async def test_a_client_that_disconnects_disturbs_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with health.answering("127.0.0.1", 0, str) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        assert (await _ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    assert not caplog.records
