"""Bodies of requests: what a large or a hostile one may cost."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from tests.harness.waiting import until_async
from tests.unit.server.conftest import Served
from windlass.server.http import bodies, parser_process
from windlass.store import errors

CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@pytest.mark.timeout(60)  # a check of each field against all others takes minutes
def test_a_duplicate_among_very_many_fields_is_found() -> None:
    fields = [f'"k{number}":1' for number in range(200_000)]
    bodies.refuse_duplicates(("{" + ",".join(fields) + "}").encode())
    with pytest.raises(errors.BadRequest, match='duplicate field "k199999"'):
        bodies.refuse_duplicates(("{" + ",".join([*fields, fields[-1]]) + "}").encode())


SLOW = {
    "strict json": ("application/json", "?fieldValidation=Strict"),
    "yaml": ("application/yaml", ""),
    "strict yaml": ("application/yaml", "?fieldValidation=Strict"),
}


@pytest.mark.parametrize(("media_type", "query"), SLOW.values(), ids=SLOW)
async def test_others_are_answered_while_a_slow_body_is_parsed(
    served: Served, media_type: str, query: str
) -> None:
    headers = {"Authorization": f"Bearer {served.token}", "Content-Type": media_type}
    url = served.url + CONFIG_MAPS + query

    async def send(name: str) -> int:
        body = {"metadata": {"name": name}, "data": {"text": "x" * (100 << 10)}}
        async with served.session.post(url, data=json.dumps(body), headers=headers) as answer:
            return answer.status

    assert await send("first") == 201
    assert bodies.SLOW.pid is not None
    os.kill(bodies.SLOW.pid, signal.SIGSTOP)
    sending = asyncio.create_task(send("second"))
    queues = served.app.queues
    await until_async(lambda: queues.levels["parsing"].executing == 1)
    assert (await served.call("GET", CONFIG_MAPS)).code == 200
    assert not sending.done()
    os.kill(bodies.SLOW.pid, signal.SIGCONT)
    assert await sending == 201


async def test_a_text_that_takes_too_long_is_refused_and_the_next_one_is_parsed() -> None:
    slow = parser_process.ParserProcess(seconds=5.0)
    assert await slow.parse("YAML", b"a: 1") == b'{"a":1}'
    assert slow.pid is not None
    os.kill(slow.pid, signal.SIGSTOP)
    with pytest.raises(errors.BadRequest, match="takes too long"):
        await slow.parse("YAML", b"a: 2")
    assert await slow.parse("strict JSON", b'{"a":3}') == b'{"a":3}'
    with pytest.raises(errors.BadRequest, match='duplicate field "a"'):
        await slow.parse("strict JSON", b'{"a":3,"a":4}')
    await slow.stop()


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", REVIEWS), ("POST", "/apis/platform.windlass.dev/v1alpha1/tokens")],
)
async def test_yaml_is_refused_where_no_client_sends_it(
    served: Served, method: str, path: str
) -> None:
    headers = {"Content-Type": "application/yaml"}
    refused = await served.call(method, path, data=b"spec: {}", headers=headers)
    assert refused.code == 415


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
