"""What probes and Prometheus are answered, and that nobody can keep the process busy by asking."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request

import pytest

from windlass.control import health, metrics


async def _ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await reader.read()
    finally:
        writer.close()


def _get(url: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(url) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.headers["Content-Type"], refused.read().decode()


async def test_probes_and_prometheus_are_answered() -> None:
    registry, trouble = metrics.Registry(), ["not yet"]
    registry.counter("windlass_things_total", "Things.").add()
    async with health.answering("127.0.0.1", 0, registry, lambda: trouble[0]) as port:
        url = f"http://127.0.0.1:{port}"
        assert (await asyncio.to_thread(_get, f"{url}/healthz"))[::2] == (200, "ok")
        assert (await asyncio.to_thread(_get, f"{url}/readyz?verbose"))[::2] == (503, "not yet")
        trouble[0] = ""
        assert (await asyncio.to_thread(_get, f"{url}/readyz"))[::2] == (200, "ok")
        status, kind, text = await asyncio.to_thread(_get, f"{url}/metrics")
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert text == registry.render()
        assert "windlass_things_total 1" in text
        assert (await asyncio.to_thread(_get, f"{url}/runs"))[0] == 404


async def test_of_an_answer_to_head_only_the_head_is_sent() -> None:
    async with health.answering("127.0.0.1", 0, metrics.Registry(), str) as port:
        said = await _ask(port, b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"Content-Length: 2\r\n" in said
    assert said.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("nonsense", [b"hello\r\n\r\n", b"GET /" + b"x" * 100_000 + b"\r\n\r\n"])
async def test_what_is_no_request_is_told_so(nonsense: bytes) -> None:
    async with health.answering("127.0.0.1", 0, metrics.Registry(), str) as port:
        assert (await _ask(port, nonsense)).startswith(b"HTTP/1.1 400 ")


async def test_who_goes_without_a_word_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with health.answering("127.0.0.1", 0, metrics.Registry(), str) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        assert (await _ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    assert not caplog.records
