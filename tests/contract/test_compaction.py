"""History is compacted: a watch from a compacted revision gets 410 and lists again."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.objects import core, create_secrets, names, ok, refused, version_of
from tests.harness.control_plane import ControlPlane
from tests.harness.embedded import EmbeddedServer
from tests.harness.rest import Rest
from windlass.store.embedded.api import Api


@dataclasses.dataclass(frozen=True)
class Forgotten:
    """A server that has forgotten all but its present, and two memories from before."""

    api: Rest
    version: str
    token: str


@pytest.fixture(
    scope="module",
    params=["embedded", pytest.param("kubernetes", marks=pytest.mark.kubernetes)],
)
def forgotten(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Forgotten]:
    if request.param == "kubernetes":
        request.getfixturevalue("kubernetes_binaries")
        with ControlPlane.start(controllers=False) as plane:
            version, token = _remember(plane.rest)
            plane.forget_history()
            yield Forgotten(plane.rest, version, token)
        return
    with EmbeddedServer.start(tmp_path_factory.mktemp("forgotten")) as server:
        client = server.rest()
        version, token = _remember(client)
        client.close()
        server.stop()
        asyncio.run(_compact(server.state / "store.db"))
        server.launch()
        client = server.rest()
        yield Forgotten(client, version, token)
        client.close()


def _remember(api: Rest) -> tuple[str, str]:
    """A version and a continue token that will be too old, with writes after them."""
    create_secrets(api, "default", "a", "b", "c")
    page = ok(api.get(core("default", "secrets"), limit=1))
    for number in range(3):
        labels = {"metadata": {"labels": {"n": str(number)}}}
        ok(api.merge(core("default", "secrets", "a"), labels))
    ok(api.delete(core("default", "secrets", "b")))
    return version_of(page), str(page["metadata"]["continue"])


async def _compact(store: Path) -> None:
    api = await Api.open(store)
    await api.mvcc.compact(api.mvcc.last_rv)
    await api.close()


def test_watch_from_a_compacted_version_gets_410(forgotten: Forgotten) -> None:
    with forgotten.api.watch(
        core("default", "secrets"), resourceVersion=forgotten.version, timeoutSeconds=5
    ) as watch:
        if watch.status == 410:
            return
        event = next(iter(watch))
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    assert event["object"]["reason"] in ("Expired", "Gone")


def test_page_of_a_compacted_version_gets_410(forgotten: Forgotten) -> None:
    answer = forgotten.api.get(core("default", "secrets"), limit=1, **{"continue": forgotten.token})
    refused(answer, 410, "Expired")


def test_list_at_a_compacted_version_gets_410(forgotten: Forgotten) -> None:
    answer = forgotten.api.get(
        core("default", "secrets"),
        resourceVersion=forgotten.version,
        resourceVersionMatch="Exact",
    )
    refused(answer, 410, "Expired")


def test_present_is_not_forgotten(forgotten: Forgotten) -> None:
    listing = ok(forgotten.api.get(core("default", "secrets")))
    assert names(listing) == ["a", "c"]
    assert listing["items"][0]["metadata"]["labels"] == {"n": "2"}


def test_watch_from_a_new_list_goes_on(forgotten: Forgotten) -> None:
    path = core("default", "secrets")
    version = version_of(ok(forgotten.api.get(path)))
    change = {"metadata": {"labels": {"n": "after"}}}
    ok(forgotten.api.merge(core("default", "secrets", "c"), change))
    with forgotten.api.watch(path, resourceVersion=version) as watch:
        (event,) = watch.take(1)
    assert (event["type"], event["object"]["metadata"]["name"]) == ("MODIFIED", "c")
    ok(forgotten.api.merge(core("default", "secrets", "c"), {"metadata": {"labels": None}}))
