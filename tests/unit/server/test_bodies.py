"""Bodies of requests: what a large or a hostile one may cost."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.unit.server.conftest import Served
from windlass.server.http import bodies
from windlass.store import errors

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@pytest.mark.timeout(60)  # a check of each field against all others takes minutes
def test_a_duplicate_among_very_many_fields_is_found() -> None:
    fields = [f'"k{number}":1' for number in range(200_000)]
    bodies.refuse_duplicates(("{" + ",".join(fields) + "}").encode())
    with pytest.raises(errors.BadRequest, match='duplicate field "k199999"'):
        bodies.refuse_duplicates(("{" + ",".join([*fields, fields[-1]]) + "}").encode())


LARGE = {
    "json": ("application/json", 1 << 20),
    "yaml": ("application/yaml", 200 << 10),
}


@pytest.mark.parametrize(("media_type", "size"), LARGE.values(), ids=LARGE)
async def test_others_are_answered_while_a_large_body_is_parsed(
    served: Served, monkeypatch: pytest.MonkeyPatch, media_type: str, size: int
) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()
    loop, decode = asyncio.get_running_loop(), bodies._decode

    def slow(*given):  # in the worker thread; on the loop it would wait for itself
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(30)
        return decode(*given)

    monkeypatch.setattr(bodies, "_decode", slow)
    body = {"metadata": {"name": "big"}, "data": {"text": "x" * size}}
    headers = {"Authorization": f"Bearer {served.token}", "Content-Type": media_type}
    url = served.url + CONFIG_MAPS
    sending = asyncio.create_task(served.session.post(url, data=json.dumps(body), headers=headers))
    await asyncio.wait_for(began.wait(), 30)
    assert (await served.call("GET", CONFIG_MAPS)).code == 200
    go_on.set()
    async with await sending as answer:
        assert answer.status == 201


async def test_requests_that_need_no_role_have_a_small_limit(served: Served) -> None:
    body = {"spec": {"resourceAttributes": {"verb": "x" * bodies.MAX_REVIEW_BYTES}}}
    refused = await served.call("POST", REVIEWS, body, token=await served.user("bob"))
    assert refused.code == 413


async def test_a_body_without_a_length_is_bounded_all_the_same(served: Served) -> None:
    async def chunks():
        for _ in range(20):
            yield b" " * (bodies.MAX_REVIEW_BYTES // 10)

    headers = {"Authorization": f"Bearer {served.token}", "Content-Type": "application/json"}
    async with served.session.post(served.url + REVIEWS, data=chunks(), headers=headers) as answer:
        assert answer.status == 413
