"""Results of pipeline steps by content: the step cache, and which driver executes which step.

A record is claimed, then done. A claim belongs to one driver and expires unless the driver renews
it, so that the step of a driver that was killed is executed by another. Concurrent drivers with
the same key wait for the one with the claim. A record that is done never changes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from windlass.ledger.db import schema
from windlass.ledger.db.repository import LedgerRepository

KEPT_SECONDS = 90 * 86400
"""A result that no pipeline asked for in this time is forgotten."""
_AT_ONCE = 500
_COMPARED = 20
"""The last results of a step, of which the most similar one explains a miss."""
_RECORD = schema.step_record


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One execution that a driver asks for."""

    key: str
    position: int
    """Among the calls of one `map`; 0 otherwise."""
    own_parts: Mapping[str, str]
    """Parts of the key that differ between the calls of a step: parameters and inputs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A driver that asks for steps of one name."""

    namespace: str
    pipeline: str
    step: str
    user: str
    owner: str
    shared_parts: Mapping[str, str]
    lease_seconds: int


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What an execution returned: a blob, or a small value in the record."""

    digest: str
    size: int
    value: str
    run: str
    miss: str
    """Which parts differed from the most similar result before."""


def look_up(
    repository: LedgerRepository, claim: Claim, steps: Sequence[Step], now: int
) -> dict[str, dict[str, Any]]:
    """For each key the record that is done, or the claim: the caller's if it is to execute it."""
    with repository.engine.begin() as connection:
        found = _rows(connection, claim.namespace, [each.key for each in steps])
        free = [
            each
            for each in steps
            if each.key not in found or _is_free(found[each.key], claim.owner, now)
        ]
        if free:
            _claim(connection, claim, free, now)
            found |= _rows(connection, claim.namespace, [each.key for each in free])
    return {key: _outcome(row) for key, row in found.items()}


def complete(
    repository: LedgerRepository, namespace: str, key: str, owner: str, result: Result, now: int
) -> bool:
    """Records the result; False if the claim was lost and another result is there."""
    with repository.engine.begin() as connection:
        changed = connection.execute(
            sa.update(_RECORD)
            .where(
                _RECORD.c.namespace == namespace, _RECORD.c.key == key,
                _RECORD.c.owner == owner, _RECORD.c.done == 0,
            )
            .values(done=1, ended=now, **dataclasses.asdict(result))
        )  # fmt: skip
        return bool(changed.rowcount)


def renew(repository: LedgerRepository, namespace: str, owner: str, expires: int) -> int:
    """Extends all claims of a driver; returns how many."""
    with repository.engine.begin() as connection:
        changed = connection.execute(
            sa.update(_RECORD)
            .where(_RECORD.c.namespace == namespace, _RECORD.c.owner == owner, _RECORD.c.done == 0)
            .values(expires=expires)
        )
        return int(changed.rowcount)


def release(repository: LedgerRepository, namespace: str, owner: str, keys: Sequence[str]) -> None:
    """Gives up claims: of these keys, or all of the driver."""
    mine = [_RECORD.c.namespace == namespace, _RECORD.c.owner == owner, _RECORD.c.done == 0]
    if keys:
        mine.append(_RECORD.c.key.in_(keys))
    with repository.engine.begin() as connection:
        connection.execute(sa.delete(_RECORD).where(*mine))


def forget(repository: LedgerRepository, namespace: str, keys: Sequence[str]) -> None:
    """Removes results whose content is gone."""
    with repository.engine.begin() as connection:
        connection.execute(
            sa.delete(_RECORD).where(
                _RECORD.c.namespace == namespace, _RECORD.c.key.in_(keys), _RECORD.c.done == 1
            )
        )


def prune(repository: LedgerRepository, now: int) -> None:
    """Removes results that no pipeline has asked for, claims of drivers that are gone, and parts
    to which no record refers."""
    with repository.engine.begin() as connection:
        before = now - KEPT_SECONDS
        connection.execute(sa.delete(_RECORD).where(_RECORD.c.done == 1, _RECORD.c.ended < before))
        connection.execute(
            sa.delete(_RECORD).where(_RECORD.c.done == 0, _RECORD.c.expires < before)
        )
        parts = schema.step_parts
        used = (
            sa.select(_RECORD.c.key)
            .where(
                _RECORD.c.namespace == parts.c.namespace, _RECORD.c.shared_parts == parts.c.digest
            )
            .exists()
        )
        connection.execute(sa.delete(parts).where(~used))


def listed(
    repository: LedgerRepository, namespace: str, pipeline: str, step: str, limit: int
) -> list[dict[str, Any]]:
    """The newest records of a namespace, of a pipeline or of one step."""
    wanted = [_RECORD.c.namespace == namespace]
    wanted += [_RECORD.c.pipeline == pipeline] if pipeline else []
    wanted += [_RECORD.c.step == step] if step else []
    with repository.engine.connect() as connection:
        rows = connection.execute(
            sa.select(_RECORD).where(*wanted)
            .order_by(_RECORD.c.started.desc(), _RECORD.c.position).limit(limit)
        ).mappings()  # fmt: skip
        return [_described(dict(row)) for row in rows]


def similar(
    repository: LedgerRepository, claim: Claim, position: int
) -> list[dict[str, dict[str, str]]]:
    """The parts of the last results of this step, newest first: of the same position of a `map`
    first."""
    parts = schema.step_parts
    with repository.engine.connect() as connection:
        rows = connection.execute(
            sa.select(_RECORD.c.own_parts, parts.c.body)
            .join(
                parts,
                sa.and_(
                    parts.c.namespace == _RECORD.c.namespace,
                    parts.c.digest == _RECORD.c.shared_parts,
                ),
            )
            .where(
                _RECORD.c.namespace == claim.namespace, _RECORD.c.pipeline == claim.pipeline,
                _RECORD.c.step == claim.step, _RECORD.c.done == 1,
            )
            .order_by((_RECORD.c.position == position).desc(), _RECORD.c.ended.desc())
            .limit(_COMPARED)
        )  # fmt: skip
        return [{"own": json.loads(own), "shared": json.loads(body)} for own, body in rows]


def _is_free(row: Mapping[str, Any], owner: str, now: int) -> bool:
    return not row["done"] and (row["owner"] == owner or row["expires"] <= now)


def _claim(connection: sa.Connection, claim: Claim, steps: Sequence[Step], now: int) -> None:
    body = json.dumps(claim.shared_parts, sort_keys=True)
    shared = hashlib.sha256(body.encode()).hexdigest()
    insert = _insert(connection)
    connection.execute(
        insert(schema.step_parts)
        .values(namespace=claim.namespace, digest=shared, body=body)
        .on_conflict_do_nothing()
    )
    taken = {
        "namespace": claim.namespace, "pipeline": claim.pipeline, "step": claim.step,
        "user": claim.user, "owner": claim.owner, "done": 0, "started": now, "ended": 0,
        "expires": now + claim.lease_seconds, "run": "", "digest": "", "size": 0, "value": "",
        "shared_parts": shared, "miss": "",
    }  # fmt: skip
    rows = [
        {**taken, "key": each.key, "position": each.position,
         "own_parts": json.dumps(dict(each.own_parts), sort_keys=True)}
        for each in steps
    ]  # fmt: skip
    statement = insert(_RECORD)
    names = [name for name in rows[0] if name not in ("namespace", "key")]
    # Between reading and writing another driver may have taken it, or have completed it.
    statement = statement.on_conflict_do_update(
        index_elements=["namespace", "key"],
        set_={name: statement.excluded[name] for name in names},
        where=sa.and_(
            _RECORD.c.done == 0,
            sa.or_(_RECORD.c.owner == claim.owner, _RECORD.c.expires <= now),
        ),
    )
    connection.execute(statement, rows)


def _insert(connection: sa.Connection) -> Any:
    return postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert


def _rows(
    connection: sa.Connection, namespace: str, keys: Sequence[str]
) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    for start in range(0, len(keys), _AT_ONCE):
        some = keys[start : start + _AT_ONCE]
        rows = connection.execute(
            sa.select(_RECORD).where(_RECORD.c.namespace == namespace, _RECORD.c.key.in_(some))
        ).mappings()
        found |= {row["key"]: dict(row) for row in rows}
    return found


def _outcome(row: Mapping[str, Any]) -> dict[str, Any]:
    if row["done"]:
        return {
            "state": "done", "digest": row["digest"], "size": row["size"], "value": row["value"],
            "run": row["run"],
        }  # fmt: skip
    return {"state": "claimed", "owner": row["owner"], "user": row["user"]}


def _described(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "key": row["key"], "pipeline": row["pipeline"], "step": row["step"],
        "position": row["position"], "user": row["user"],
        "state": "done" if row["done"] else "running", "started": row["started"],
        "ended": row["ended"], "run": row["run"], "digest": row["digest"], "size": row["size"],
        "miss": row["miss"],
    }  # fmt: skip
