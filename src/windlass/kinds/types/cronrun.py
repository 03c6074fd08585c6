"""CronRun: a Run template that is started by the clock.

Written by users; the CronRun reconciler in `control` creates the Runs and writes `status`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import Meta

from windlass.kinds import fields
from windlass.kinds.meta import Object, Struct
from windlass.kinds.resources import Column, Resource
from windlass.kinds.run import RunSpec

LABEL_CRONRUN: Final = "windlass.dev/cronrun"
"""On every Run that a CronRun made: the CronRun's name."""

MAX_NAME: Final = 28
"""A Run's name is the CronRun's, a dash and 11 characters for the time: at most 40 in all."""


class TemplateMeta(Struct):
    """Labels and annotations of each Run."""

    labels: fields.Labels | None = None
    """Labels of each Run."""
    annotations: fields.Labels | None = None
    """Annotations of each Run."""


class RunTemplate(Struct, kw_only=True):
    """The Run that is made each time."""

    metadata: TemplateMeta | None = None
    """Labels and annotations of each Run."""
    spec: RunSpec
    """What to run."""


class CronRunSpec(Struct, kw_only=True):
    """When to run what."""

    schedule: fields.Schedule
    """Minute, hour, day of month, month, day of week, as in cron: `0 3 * * 1-5`; or `@hourly`,
    `@daily`, `@weekly`, `@monthly`, `@yearly`."""
    time_zone: fields.TimeZone = "UTC"
    """Where the clock hangs: `Europe/Berlin`."""
    concurrency_policy: Literal["Allow", "Forbid", "Replace"] = "Allow"
    """When the last Run is not finished: start another beside it, skip this time, or stop the
    last one."""
    starting_deadline: fields.Duration | None = None
    """A start that was missed by more than this is skipped. No limit when absent."""
    successful_history_limit: Annotated[int, Meta(ge=0, le=1000)] = 3
    """How many Runs that succeeded are kept."""
    failed_history_limit: Annotated[int, Meta(ge=0, le=1000)] = 1
    """How many Runs that failed or were stopped are kept."""
    suspend: bool = False
    """Start nothing until it is false again. What runs goes on."""
    template: RunTemplate
    """The Run that is made each time. A change holds for later Runs."""


class ActiveRun(Struct):
    """A Run that this CronRun made and that has not ended."""

    name: str
    """Its name."""
    uid: str = ""
    """Its uid."""


class CronRunStatus(Struct):
    """What became of it. Only the platform writes this."""

    observed_generation: int = 0
    """The generation of the spec that this status is about."""
    last_schedule_time: fields.Time | None = None
    """The last time on the schedule for which a Run was made."""
    active: list[ActiveRun] | None = None
    """Its Runs that have not ended."""
    conditions: fields.Conditions | None = None
    """Scheduled: whether the last start went well, and if not, why."""


class CronRun(Object, kw_only=True):
    """A Run that is started by the clock."""

    resource: ClassVar = Resource(
        "windlass.dev", "v1alpha1", "CronRun", "cronruns", namespaced=True, short_names=("wcr",),
        categories=("windlass", "all"), subresources=("status",),
        columns=(
            Column("Schedule", ".spec.schedule", description="When"),
            Column("Zone", ".spec.timeZone", description="Where the clock hangs"),
            Column("Suspend", ".spec.suspend", "boolean", description="Held"),
            Column("Last", ".status.lastScheduleTime", "date", description="Last start"),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
    )  # fmt: skip
    spec: CronRunSpec
    status: CronRunStatus = msgspec.field(default_factory=CronRunStatus)
