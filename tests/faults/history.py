"""What a campaign must add up to, checked against the store's own history.

Called by the fault tests after the server was stopped. Reads the SQLite file directly: the check
shares no code with the engine it judges.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.faults.driver import ACKNOWLEDGED, REFUSED, RESOURCES, Campaign, Operation, Watched

ADDED, MODIFIED, DELETED = 1, 2, 3


@dataclasses.dataclass(frozen=True)
class Row:
    """One revision as stored."""

    version: int
    resource: str
    name: str
    event: int
    previous: Row | None
    object: dict[str, Any]

    @property
    def mark(self) -> str:
        return str(self.object["metadata"]["annotations"]["mark"])

    @property
    def uid(self) -> str:
        return str(self.object["metadata"]["uid"])

    @property
    def side(self) -> str:
        return str(self.object["metadata"]["labels"]["side"])


def problems(campaign: Campaign, store: Path) -> list[str]:
    """Everything that does not add up; empty when the store kept its guarantees."""
    connection = sqlite3.connect(f"file:{store}?mode=ro", uri=True)
    try:
        found = [*campaign.problems, *_damage(connection)]
        rows = read(connection)
    finally:
        connection.close()
    found += _unexplained(rows, campaign.operations)
    found += _lost(rows, campaign.operations)
    found += _out_of_order(campaign.operations)
    for watched in campaign.watched:
        found += _misled(rows, watched)
    return found


def read(connection: sqlite3.Connection) -> list[Row]:
    """Every revision of the campaign's objects, oldest first."""
    rows: dict[int, Row] = {}
    for version, resource, name, event, previous, data in connection.execute(
        "SELECT rv, resource, name, event, prev_rv, data FROM revision "
        "WHERE namespace = 'default' ORDER BY rv"
    ):
        if resource in RESOURCES:
            before = rows.get(previous) if previous is not None else None
            rows[version] = Row(version, resource, name, event, before, json.loads(data))
    return list(rows.values())


def _damage(connection: sqlite3.Connection) -> Iterator[str]:
    """The file is sound, and what is live is exactly what the history says is live."""
    verdict = connection.execute("PRAGMA integrity_check").fetchall()
    if verdict != [("ok",)]:
        yield f"integrity_check: {verdict[:5]}"
    compacted = connection.execute("SELECT value FROM meta WHERE key = 'compacted'").fetchone()[0]
    if compacted:
        yield f"history was compacted to {compacted}: the campaign cannot be checked"
    live: dict[tuple[str, str, str], int] = {}
    for version, *where, event, previous in connection.execute(
        "SELECT rv, resource, namespace, name, event, prev_rv FROM revision ORDER BY rv"
    ):
        key = (where[0], where[1], where[2])
        if previous != live.get(key):
            yield f"revision {version} of {key} follows {previous}, not {live.get(key)}"
        if event == DELETED:
            live.pop(key, None)
        else:
            live[key] = version
    current = {
        (resource, namespace, name): version
        for resource, namespace, name, version in connection.execute(
            "SELECT resource, namespace, name, rv FROM current"
        )
    }
    if current != live:
        yield f"live objects are not those of the history: {set(current) ^ set(live)}"


def _unexplained(rows: list[Row], operations: list[Operation]) -> Iterator[str]:
    """Each revision comes from one write that was sent and not refused, and no write from two."""
    by_mark = {operation.mark: operation for operation in operations}
    deletes = Counter(
        operation.uid
        for operation in operations
        if operation.verb == "delete" and operation.outcome != REFUSED
    )
    seen: set[str] = set()
    for row in rows:
        if int(row.object["metadata"]["resourceVersion"]) != row.version:
            yield f"revision {row.version} says it is {row.object['metadata']}"
        if row.event == DELETED:
            if not deletes[row.uid]:
                yield f"nobody deleted {row.name} at {row.version}"
            continue
        operation = by_mark.get(row.mark)
        if operation is None or operation.outcome == REFUSED or operation.name != row.name:
            yield f"revision {row.version} ({row.mark}) was never written: {operation}"
            continue
        if row.mark in seen:
            yield f"written twice: {operation} at {row.version}"
        seen.add(row.mark)
        before = row.previous.version if row.previous else 0
        if operation.verb == "replace" and before != operation.based_on:
            yield f"{operation} replaced {before}: an update was lost"


def _lost(rows: list[Row], operations: list[Operation]) -> Iterator[str]:
    """Each acknowledged write is in the history, as it was acknowledged."""
    written = {row.mark: row for row in rows if row.event != DELETED}
    deleted = {row.uid: row for row in rows if row.event == DELETED}
    for operation in operations:
        if operation.outcome != ACKNOWLEDGED:
            continue
        if operation.verb == "delete":
            row = deleted.get(operation.uid)
            if row is None or row.previous is None:
                yield f"acknowledged delete is undone: {operation}"
            elif row.previous.version != operation.based_on:
                yield f"deleted {row.previous.version} instead: {operation}"
        else:
            row = written.get(operation.mark)
            if row is None:
                yield f"acknowledged write is lost: {operation}"
            elif row.version != operation.version:
                yield f"acknowledged as {operation.version}, stored as {row.version}: {operation}"


def _out_of_order(operations: list[Operation]) -> Iterator[str]:
    """What was sent after another write was acknowledged has a higher version: never back."""
    acknowledged = [o for o in operations if o.outcome == ACKNOWLEDGED and o.version]
    by_answer = sorted(acknowledged, key=lambda o: o.answered)
    highest, next_answer = 0, 0
    for operation in sorted(acknowledged, key=lambda o: o.sent):
        while by_answer[next_answer].answered < operation.sent:
            highest = max(highest, by_answer[next_answer].version)
            next_answer += 1
        if operation.version <= highest:
            yield f"version {operation.version} was given after {highest}: {operation}"


def _misled(rows: list[Row], watched: Watched) -> Iterator[str]:
    """A watcher got each change it selects once, in order, and nothing else."""
    expected = [
        event
        for row in rows
        if row.resource == watched.resource and row.version > watched.start
        if (event := _as_seen(row, watched.selector)) is not None
    ]
    if watched.events == expected:
        return
    told, due = Counter(watched.events), Counter(expected)
    yield (
        f"watcher of {watched.resource} {watched.selector!r} from {watched.start} over "
        f"{watched.connections} connections: missed {list((due - told).elements())[:5]}, "
        f"doubled or made up {list((told - due).elements())[:5]}, "
        f"in order: {watched.events == sorted(watched.events, key=lambda e: e[1])}"
    )


def _as_seen(row: Row, selector: str) -> tuple[str, int, str, str] | None:
    before = row.previous if row.previous and _selected(row.previous, selector) else None
    after = row.event != DELETED and _selected(row, selector)
    if after:
        return "MODIFIED" if before else "ADDED", row.version, row.name, row.mark
    if before:  # gone from where the watcher looks: the event has the last state it could see
        return "DELETED", row.version, row.name, before.mark
    return None


def _selected(row: Row, selector: str) -> bool:
    return selector == "" or row.side == "even"
