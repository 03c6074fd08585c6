"""What happened to every job, attempt by attempt, as a CSV file.

One row for each attempt, in the order of submission. Times are seconds on the scenario's clock;
what did not happen is empty.
"""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from windlass.sim.metrics.metrics import Outcome

COLUMNS = (
    "policy", "job", "queue", "user", "attempt", "submitted", "queued_at", "started", "ended",
    "outcome", "nodes", "devices", "device_seconds", "reserved_start", "reservation",
    "withdrawn_because",
)  # fmt: skip


def write(path: Path, outcomes: Iterable[Outcome]) -> None:
    """Writes all of it or nothing: a reader never sees a part. Raises OSError."""
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for outcome in outcomes:
        table.writerows(rows(outcome))
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text.getvalue())
            file.flush()
            os.fsync(file.fileno())
        _as_created(temporary)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def rows(outcome: Outcome) -> Iterator[list[object]]:
    """The rows of one policy."""
    for record in outcome.records:
        workload = record.job.workload
        for number, attempt in enumerate(record.attempts, start=1):
            yield [
                outcome.policy,
                workload.key,
                workload.queue,
                workload.user,
                number,
                _number(workload.submitted),
                _number(attempt.queued_at),
                _number(attempt.started),
                _number(attempt.ended),
                attempt.how,
                " ".join(attempt.nodes),
                _number(attempt.devices),
                _number(attempt.device_seconds),
                _number(attempt.reserved),
                attempt.reservation,
                attempt.withdrawn_because if attempt.reservation == "withdrawn" else "",
            ]


def _number(value: float | None) -> str:
    """Exact, and without an exponent where a person may read it."""
    if value is None:
        return ""
    return str(int(value)) if value == int(value) else repr(float(value))


def _as_created(path: str) -> None:
    """With the permissions of any new file; a temporary file is private."""
    mask = os.umask(0)
    os.umask(mask)
    Path(path).chmod(0o666 & ~mask)
