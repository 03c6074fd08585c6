"""Lists and watch streams from bytes: any splitting, any size, other tasks get their turn."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.kinds.types.core import ConfigMap, Pod
from windlass.store import errors
from windlass.store.kubernetes import codec


async def stream(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def event(change: str, **obj: Any) -> bytes:
    return json.dumps({"type": change, "object": obj}).encode()


@given(
    text=st.lists(st.binary(max_size=6).map(lambda b: b.replace(b"\n", b"")), max_size=8),
    cuts=st.lists(st.integers(0, 60), max_size=8),
)
def test_lines_do_not_depend_on_how_the_stream_is_cut(text: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(line + b"\n" for line in text)
    edges = sorted({0, len(whole), *(min(cut, len(whole)) for cut in cuts)})
    chunks = [whole[a:b] for a, b in itertools.pairwise(edges)]

    async def split() -> list[bytes]:
        return [line async for line in codec.lines(stream(chunks))]

    assert asyncio.run(split()) == text


async def test_a_last_line_needs_no_newline() -> None:
    assert [line async for line in codec.lines(stream([b"a\nb", b"c"]))] == [b"a", b"bc"]


def numbered(count: int) -> bytes:
    items = [{"metadata": {"name": f"o{i}"}} for i in range(count)]
    return json.dumps({"metadata": {"resourceVersion": "9"}, "items": items}).encode()


async def turns_during(work: Any) -> int:
    """How often another task ran while `work` was done."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count())
    await work
    other.cancel()
    return turns


async def test_other_tasks_run_during_a_large_list() -> None:
    count = codec.SLICE * 10
    assert await turns_during(codec.decode_list(ConfigMap, numbered(count))) >= 9


async def test_other_tasks_run_during_a_flood_of_events() -> None:
    one_chunk = b"\n".join(event("ADDED", metadata={"name": "a"}) for _ in range(codec.SLICE * 10))

    async def drain() -> None:
        async for _ in codec.decode_events(ConfigMap, stream([one_chunk])):
            pass

    assert await turns_during(drain()) >= 9


async def test_the_collector_is_paused_until_the_last_of_several_lists_is_read() -> None:
    bodies = [numbered(codec.SLICE * slices) for slices in (3, 9)]
    short, long = (asyncio.create_task(codec.decode_list(ConfigMap, body)) for body in bodies)
    await short
    assert not long.done()
    assert not gc.isenabled()
    await long
    assert gc.isenabled()


async def test_a_disabled_collector_stays_off() -> None:
    gc.disable()
    try:
        await codec.decode_list(ConfigMap, numbered(3))
        assert not gc.isenabled()
    finally:
        gc.enable()


async def test_the_collector_runs_again_after_a_list_that_cannot_be_read() -> None:
    with pytest.raises(errors.ApiError, match=r"configmaps.*\$"):
        await codec.decode_list(ConfigMap, b'{"items": [{"data": 5}]}')
    assert gc.isenabled()


async def test_a_bookmark_as_the_api_server_writes_it() -> None:
    metadata = {"resourceVersion": "7", "annotations": {"k8s.io/initial-events-end": "true"}}
    raw = event("BOOKMARK", metadata=metadata, spec={"containers": None}, status={})
    (found,) = [e async for e in codec.decode_events(Pod, stream([raw]))]
    assert (found.type, found.object.metadata.resource_version, found.initial_end) == (
        "BOOKMARK", "7", True,
    )  # fmt: skip


async def test_an_event_that_cannot_be_read_names_kind_and_field() -> None:
    raw = event("ADDED", metadata={"name": 5})
    with pytest.raises(errors.ApiError, match=r"pods is not a valid v1 Pod.*metadata\.name"):
        [e async for e in codec.decode_events(Pod, stream([raw]))]
