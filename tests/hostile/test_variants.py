"""Random variants of the rows: other attackers, other methods, paths and headers written
differently, bodies cut and bent. Whatever is answered, nobody learns or changes anything.

`WINDLASS_SEED` repeats a campaign; it is printed when one fails.
"""

from __future__ import annotations

import dataclasses
import random
import urllib.parse
from pathlib import Path

import pytest

from tests.faults.seeds import SOAK, campaign_seed
from tests.hostile import judge
from tests.hostile.attack import GONE, Attack, Request, chosen, request_of
from tests.hostile.engines import EmbeddedWorld, KubernetesWorld
from tests.hostile.test_campaign import ROWS
from tests.hostile.worlds import World

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

VARIANTS = 3000 if SOAK else 60
_STRANGERS = ("nora", "nobody", "made-up", "pod", "node")
"""They may write in no team. Rita attacks too, but not her own team: there she may."""
_ANSWERS = (*range(200, 500), 501, 503, 504, GONE)
"""Anything but an error inside the server; Kubernetes itself answers some with 500."""
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_HEADERS = {
    "X-Remote-User": "admin", "Impersonate-User": "bob", "X-HTTP-Method-Override": "DELETE",
    "X-Original-URL": "/api/v1/secrets", "Accept-Encoding": "gzip, evil", "Range": "bytes=0-1",
    "Expect": "100-continue", "Upgrade": "h2c", "TE": "trailers", "Accept": "application/yaml",
    "If-Match": "*", "Content-Encoding": "gzip",
}  # fmt: skip
_TEAMS = ("/namespaces/red/", "/namespaces/blue/")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(EmbeddedWorld, id="embedded"),
        pytest.param(KubernetesWorld, id="kubernetes", marks=pytest.mark.kubernetes),
    ],
)
def test_variants_of_attacks_change_nothing_and_tell_nothing(
    request: pytest.FixtureRequest, kind: type[World], tmp_path: Path
) -> None:
    if kind is KubernetesWorld:
        request.getfixturevalue("kubernetes_binaries")
    seed = campaign_seed()
    dice = random.Random(seed)
    world = kind(tmp_path)  # type: ignore[call-arg]
    try:
        baseline = world.digest()
        rows = [row for row in chosen(ROWS, world.engine) if not callable(row.body)]
        rows = [row for row in rows if row.at_once == 1 and "Authorization" not in row.headers]
        for number in range(VARIANTS):
            row = _varied(dice.choice(rows), dice)
            found = judge.outcome(world, row, lambda one: _bent(one, dice), baseline)
            assert not found, f"seed {seed}, variant {number} of {row.what}: {row}\n{found}"
    finally:
        world.stop()


def _varied(row: Attack, dice: random.Random) -> Attack:
    path = row.path.replace(*_TEAMS) if dice.random() < 0.5 else row.path
    attackers = _STRANGERS if "/namespaces/red" in path else ("rita", *_STRANGERS)
    return dataclasses.replace(
        row,
        actor=dice.choice(attackers),
        method=dice.choice(_METHODS) if dice.random() < 0.3 else row.method,
        path=path,
        expected=_ANSWERS,
        on_kubernetes=(*_ANSWERS, 500),
        lacks=(),
    )


def _bent(request: Request, dice: random.Random) -> Request:
    """The same request, written differently."""
    path, _, query = request.path.partition("?")
    if dice.random() < 0.4:
        at = dice.randrange(1, max(2, len(path)))
        path = path[:at] + urllib.parse.quote(path[at : at + 1], safe="") + path[at + 1 :]
        if dice.random() < 0.5:
            path = path.replace("/namespaces/", dice.choice(("//namespaces/", "/./namespaces/")), 1)
    if dice.random() < 0.2:
        query += dice.choice(("&watch=1&timeoutSeconds=1", "&limit=1", "&dryRun=All", "&pretty=1"))
    body = request.body
    if body and dice.random() < 0.3:
        body = body[: dice.randrange(len(body))]
    if body and dice.random() < 0.2:
        at = dice.randrange(len(body))
        body = body[:at] + bytes([dice.randrange(256)]) + body[at + 1 :]
    headers = dict(request.headers)
    if dice.random() < 0.3:
        name = dice.choice(list(_HEADERS))
        headers[name] = _HEADERS[name]
    return Request(request.method, f"{path}?{query}" if query else path, body, headers)


def test_a_variant_is_the_same_request_unless_it_is_bent() -> None:
    row = ROWS[0]
    same = request_of(row, {})
    assert any(_bent(same, random.Random(seed)) != same for seed in range(5))
