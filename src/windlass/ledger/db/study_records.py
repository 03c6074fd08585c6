"""Hyperparameter studies: their definition, their trials, and which driver writes them.

One driver at a time writes the trials of a study: it has a claim, which expires unless the driver
renews it. So the trials of a driver that was killed are continued by another. The state of a trial
that ended never changes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from windlass.ledger.db import schema
from windlass.ledger.db.repository import LedgerRepository

RUNNING = "running"
_STUDY, _TRIAL = schema.study, schema.trial


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """One evaluation of parameters."""

    number: int
    state: str
    started: int
    ended: int
    run: str
    """The run that evaluates it; "" for a call in a worker."""
    body: Mapping[str, Any]
    """Parameters, values, and values reported in between; the server does not read it."""


class OtherOwner(Exception):
    """Another driver has the claim."""


def create(
    repository: LedgerRepository, namespace: str, name: str, user: str,
    body: Mapping[str, Any], now: int,
) -> dict[str, Any]:  # fmt: skip
    """Creates the study unless it exists; returns the stored one."""
    with repository.engine.begin() as connection:
        connection.execute(
            _insert(connection)(_STUDY)
            .values(
                namespace=namespace, name=name, user=user, created=now, owner="", expires=0,
                body=json.dumps(body, sort_keys=True),
            )
            .on_conflict_do_nothing()
        )  # fmt: skip
        found = _study(connection, namespace, name)
    assert found is not None, "it was just inserted, or existed"  # noqa: S101
    return found


def claim(
    repository: LedgerRepository, namespace: str, name: str, owner: str, expires: int, now: int
) -> bool:
    """Claims the study for a driver, or extends its claim; False if another driver has it."""
    with repository.engine.begin() as connection:
        changed = connection.execute(
            sa.update(_STUDY)
            .where(
                _STUDY.c.namespace == namespace, _STUDY.c.name == name,
                sa.or_(_STUDY.c.owner == owner, _STUDY.c.expires <= now),
            )
            .values(owner=owner, expires=expires)
        )  # fmt: skip
        return bool(changed.rowcount)


def release(repository: LedgerRepository, namespace: str, name: str, owner: str) -> None:
    """Ends the claim of a driver."""
    with repository.engine.begin() as connection:
        connection.execute(
            sa.update(_STUDY)
            .where(_STUDY.c.namespace == namespace, _STUDY.c.name == name, _STUDY.c.owner == owner)
            .values(owner="", expires=0)
        )


def write(
    repository: LedgerRepository, namespace: str, study: str, owner: str, trials: Sequence[Trial]
) -> None:
    """Stores trials; raises `OtherOwner` if the driver has lost its claim."""
    rows = [
        {"namespace": namespace, "study": study, **dataclasses.asdict(each),
         "body": json.dumps(each.body, sort_keys=True)}
        for each in trials
    ]  # fmt: skip
    with repository.engine.begin() as connection:
        # The update locks the row of the study, so no other driver can claim it meanwhile.
        mine = connection.execute(
            sa.update(_STUDY)
            .where(_STUDY.c.namespace == namespace, _STUDY.c.name == study, _STUDY.c.owner == owner)
            .values(owner=owner)
        )
        if not mine.rowcount:
            raise OtherOwner
        if not rows:
            return
        statement = _insert(connection)(_TRIAL)
        names = [name for name in rows[0] if name not in ("namespace", "study", "number")]
        statement = statement.on_conflict_do_update(
            index_elements=["namespace", "study", "number"],
            set_={name: statement.excluded[name] for name in names},
            where=_TRIAL.c.state == RUNNING,
        )
        connection.execute(statement, rows)


def get(repository: LedgerRepository, namespace: str, name: str) -> dict[str, Any] | None:
    """One study with the number of its trials in each state."""
    with repository.engine.connect() as connection:
        found = _study(connection, namespace, name)
        if found is None:
            return None
        return found | {"trials": _counts(connection, namespace, name).get(name, {})}


def listed(repository: LedgerRepository, namespace: str, limit: int) -> list[dict[str, Any]]:
    """The newest studies of a namespace with the number of their trials in each state."""
    with repository.engine.connect() as connection:
        rows = connection.execute(
            sa.select(_STUDY).where(_STUDY.c.namespace == namespace)
            .order_by(_STUDY.c.created.desc(), _STUDY.c.name).limit(limit)
        ).mappings()  # fmt: skip
        found = [_described(dict(row)) for row in rows]
        counts = _counts(connection, namespace, "")
        return [each | {"trials": counts.get(each["name"], {})} for each in found]


def trials(
    repository: LedgerRepository, namespace: str, study: str, after: int, limit: int
) -> list[dict[str, Any]]:
    """Trials with a number greater than `after`, in order."""
    with repository.engine.connect() as connection:
        rows = connection.execute(
            sa.select(_TRIAL)
            .where(
                _TRIAL.c.namespace == namespace, _TRIAL.c.study == study, _TRIAL.c.number > after
            )
            .order_by(_TRIAL.c.number).limit(limit)
        ).mappings()  # fmt: skip
        return [
            {"number": row["number"], "state": row["state"], "started": row["started"],
             "ended": row["ended"], "run": row["run"], "body": json.loads(row["body"])}
            for row in rows
        ]  # fmt: skip


def delete(repository: LedgerRepository, namespace: str, name: str, now: int) -> bool:
    """Removes a study and its trials; False while a driver has a claim on it."""
    with repository.engine.begin() as connection:
        gone = connection.execute(
            sa.delete(_STUDY).where(
                _STUDY.c.namespace == namespace, _STUDY.c.name == name, _STUDY.c.expires <= now
            )
        )
        if not gone.rowcount:
            return False
        connection.execute(
            sa.delete(_TRIAL).where(_TRIAL.c.namespace == namespace, _TRIAL.c.study == name)
        )
        return True


def _study(connection: sa.Connection, namespace: str, name: str) -> dict[str, Any] | None:
    row = connection.execute(
        sa.select(_STUDY).where(_STUDY.c.namespace == namespace, _STUDY.c.name == name)
    ).mappings().first()  # fmt: skip
    return None if row is None else _described(dict(row))


def _described(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": row["name"], "user": row["user"], "created": row["created"],
        "expires": row["expires"], "body": json.loads(row["body"]),
    }  # fmt: skip


def _counts(connection: sa.Connection, namespace: str, study: str) -> dict[str, dict[str, int]]:
    """By study, the number of trials in each state; of one study if named."""
    wanted = [_TRIAL.c.namespace == namespace]
    wanted += [_TRIAL.c.study == study] if study else []
    found: dict[str, dict[str, int]] = {}
    for name, state, count in connection.execute(
        sa.select(_TRIAL.c.study, _TRIAL.c.state, sa.func.count())
        .where(*wanted)
        .group_by(_TRIAL.c.study, _TRIAL.c.state)
    ):
        found.setdefault(name, {})[state] = count
    return found


def _insert(connection: sa.Connection) -> Any:
    return postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
