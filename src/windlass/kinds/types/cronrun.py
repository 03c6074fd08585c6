"""CronRun: a Run template that is started on a schedule.

Written by users; the CronRun reconciler in `control` creates the Runs and writes `status`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from windlass.kinds.types import field_types
from windlass.kinds.types.meta import Object, Struct
from windlass.kinds.types.resource import Column, Resource
from windlass.kinds.types.run import RunSpec

LABEL_CRONRUN: Final = "windlass.dev/cronrun"
"""Label of every Run of a CronRun: the CronRun's name."""

MAX_NAME: Final = 28
"""A Run's name is the CronRun's, a dash and 11 characters for the time: at most 40 in all."""


class TemplateMeta(Struct):
    """Labels and annotations of each Run."""

    labels: field_types.Labels | None = None
    """Labels of each Run."""
    annotations: field_types.Labels | None = None
    """Annotations of each Run."""


class RunTemplate(Struct, kw_only=True):
    """The Run that is created each time."""

    metadata: TemplateMeta | None = None
    """Labels and annotations of each Run."""
    spec: RunSpec
    """What to run."""


class CronRunSpec(Struct, kw_only=True):
    """The schedule and the Run to start."""

    schedule: field_types.Schedule
    """Minute, hour, day of month, month, day of week, as in cron: `0 3 * * 1-5`; or `@hourly`,
    `@daily`, `@weekly`, `@monthly`, `@yearly`."""
    time_zone: field_types.TimeZone = "UTC"
    """Time zone of the schedule: `Europe/Berlin`."""
    concurrency_policy: Literal["Allow", "Forbid", "Replace"] = "Allow"
    """If the last Run has not ended: start another Run (`Allow`), wait for its end (`Forbid`), or
    stop the last Run (`Replace`)."""
    starting_deadline: field_types.Duration | None = None
    """A start that is late by more than this is skipped. No limit if absent."""
    successful_history_limit: Annotated[int, Meta(ge=0, le=1000)] = 3
    """Number of succeeded Runs to keep."""
    failed_history_limit: Annotated[int, Meta(ge=0, le=1000)] = 1
    """Number of failed or stopped Runs to keep."""
    suspend: bool = False
    """Start nothing until this is false. Active Runs continue."""
    template: RunTemplate
    """The Run that is created each time. A change applies to later Runs."""


class ActiveRun(Struct):
    """A Run that this CronRun created and that has not ended."""

    name: str
    """Its name."""
    uid: str = ""
    """Its uid."""


class CronRunStatus(Struct):
    """The state of the schedule. Only the platform writes it."""

    observed_generation: int = 0
    """The generation of the spec that this status describes."""
    last_schedule_time: field_types.Time | None = None
    """The last time on the schedule for which a Run was created."""
    next_schedule_time: field_types.Time | None = None
    """The next time on the schedule. Absent while the CronRun is suspended."""
    active: list[ActiveRun] | None = None
    """Its Runs that have not ended."""
    conditions: field_types.Conditions | None = None
    """Scheduled: whether the last start succeeded, and if not, why."""


class CronRun(Object, kw_only=True):
    """Starts Runs on a schedule."""

    resource: ClassVar = Resource(
        "windlass.dev", "v1alpha1", "CronRun", "cronruns", namespaced=True, short_names=("wcr",),
        categories=("windlass", "all"), subresources=("status",),
        columns=(
            Column("Schedule", ".spec.schedule", description="When"),
            Column("Zone", ".spec.timeZone", description="Time zone"),
            Column("Suspend", ".spec.suspend", "boolean", description="Suspended"),
            Column("Last", ".status.lastScheduleTime", "date", description="Last start"),
            Column("Next", ".status.nextScheduleTime", description="Next start"),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
    )  # fmt: skip
    spec: CronRunSpec
    status: CronRunStatus = msgspec.field(default_factory=CronRunStatus)
