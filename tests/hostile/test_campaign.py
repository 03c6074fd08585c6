"""Every attack of the tables, on both engines: it is refused as the row says, nothing has changed,
everyone else is still answered, and on the embedded engine the refusal is in the audit log.

A new attack is a new row in a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.harness.waiting import until
from tests.hostile import (
    judge,
    rows_escalation,
    rows_identity,
    rows_jobs,
    rows_machines,
    rows_objects,
    rows_paths,
    rows_payloads,
    rows_teams,
)
from tests.hostile.attack import Attack, chosen, doubled
from tests.hostile.engines import EmbeddedWorld, KubernetesWorld
from tests.hostile.worlds import World
from windlass.server.platform import routes

ROWS: list[Attack] = [
    row
    for table in (
        rows_teams, rows_identity, rows_escalation, rows_objects, rows_jobs, rows_machines,
        rows_paths, rows_payloads,
    )
    for row in table.ROWS
]  # fmt: skip
_WORLDS: dict[str, type[EmbeddedWorld] | type[KubernetesWorld]] = {
    "embedded": EmbeddedWorld,
    "kubernetes": KubernetesWorld,
}
_CASES = [
    pytest.param(
        engine, row, id=f"{engine}: {row.what}",
        marks=[pytest.mark.kubernetes] if engine == "kubernetes" else [],
    )
    for engine in _WORLDS
    for row in chosen(ROWS, engine)
]  # fmt: skip


@pytest.fixture(scope="module")
def worlds(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[World, dict[str, str]]]]:
    """Engine -> its world and the digest of its state, made when the first row needs it."""
    made: dict[str, tuple[World, dict[str, str]]] = {}

    class Made(dict[str, tuple[World, dict[str, str]]]):
        def __missing__(self, engine: str) -> tuple[World, dict[str, str]]:
            if engine == "kubernetes":
                request.getfixturevalue("kubernetes_binaries")
            world = _WORLDS[engine](tmp_path_factory.mktemp(engine))
            made[engine] = self[engine] = world, world.digest()
            return self[engine]

    yield Made()
    for world, _ in made.values():
        world.stop()


@pytest.mark.parametrize(("engine", "row"), _CASES)
def test_an_attack_is_refused_and_changes_nothing(
    worlds: dict[str, tuple[World, dict[str, str]]], engine: str, row: Attack
) -> None:
    world, baseline = worlds[engine]
    found = judge.problems(world, row, baseline)
    assert not found, f"{row.actor}: {row.method} {row.path}\n" + "\n".join(found)


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("embedded", id="embedded: end"),
        pytest.param("kubernetes", id="kubernetes: end", marks=pytest.mark.kubernetes),
    ],
)
def test_after_all_of_them_everything_is_as_it_was(
    worlds: dict[str, tuple[World, dict[str, str]]], engine: str
) -> None:
    world, baseline = worlds[engine]
    judge.assert_alive(world)
    assert judge.changes(world, baseline) == []


@pytest.mark.parametrize("engine", [pytest.param("embedded", id="embedded: audit")])
def test_every_refusal_is_in_the_audit_log(
    worlds: dict[str, tuple[World, dict[str, str]]], engine: str
) -> None:
    world, _ = worlds[engine]
    until(lambda: not world.sent - world.audited(), "each refusal has its line")


def test_every_row_has_a_name_of_its_own_and_there_are_enough() -> None:
    assert doubled(ROWS) == []
    assert len(list(chosen(ROWS, "embedded"))) > 250
    assert len(list(chosen(ROWS, "kubernetes"))) > 200


def test_every_route_of_the_platform_is_attacked() -> None:
    """A route that is added needs a row."""
    refused = [row for row in ROWS if not any(code in range(200, 300) for code in row.expected)]
    tried = {(row.method, row.path.partition("?")[0]) for row in refused}
    missing = [
        f"{method} {route.template}"
        for route in routes.ROUTES
        for method in route.methods
        if route.audience != "everyone" and method != "HEAD"
        and not any(method == how and _matches(route, path) for how, path in tried)
    ]  # fmt: skip
    assert missing == []


def _matches(route: routes.Route, path: str) -> bool:
    return re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", route.template), path) is not None
