"""Query and header parameters of the platform API, as its OpenAPI document describes them."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

Json = dict[str, Any]

LARGEST_NUMBER = 100_000
MOST_ROWS = 1000
TEXT: Json = {"type": "string"}


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    description: str
    schema: Json = dataclasses.field(default_factory=lambda: TEXT)
    place: Literal["query", "header"] = "query"
    required: bool = False

    def described(self) -> Json:
        found: Json = {
            "name": self.name, "in": self.place, "description": self.description,
            "schema": self.schema,
        }  # fmt: skip
        return {**found, "required": True} if self.required else found


def _number(most: int) -> Json:
    return {"type": "integer", "minimum": 0, "maximum": most}


_TIME: Json = {"type": "string", "format": "date-time"}
_MONTH: Json = {"type": "string", "pattern": "^(19[7-9][0-9]|[2-9][0-9]{3})-(0[1-9]|1[0-2])$"}
_FORMATS: Json = {"type": "string", "enum": ["json", "csv", "html"]}
_FLAG: Json = {"type": "boolean"}

MONTH = Parameter("month", "2026-11; default: the current one", _MONTH)
PERIOD = (
    MONTH,
    Parameter("since", "instead of a month: 2026-01-01T10:20:00Z", _TIME),
    Parameter("until", "with since; default: now", _TIME),
    Parameter("timeZone", "where months begin, as Europe/Berlin; default: UTC"),
)
FORMAT = Parameter("format", "default: json", _FORMATS)
USAGE = (
    *PERIOD,
    Parameter("by", "some of team, user, queue, run, device, form, joined by commas"),
    Parameter("user", "only this user's"),
    Parameter("queue", "only in this queue"),
    Parameter("run", "only this run's"),
    Parameter("top", "at most this many rows, the largest; 0: all", _number(LARGEST_NUMBER)),
)
FLEET = (
    *PERIOD,
    Parameter(
        "step", "seconds of one point; 0: as fine as the samples", _number(LARGEST_NUMBER)
    ),
    FORMAT,
)  # fmt: skip
PS = (
    Parameter("limit", "at most this many waiting runs", _number(MOST_ROWS)),
    Parameter("finished", "at most this many finished runs", _number(MOST_ROWS)),
    Parameter("user", "only this user's"),
    Parameter("queue", "only in this queue"),
)
EXTERNAL_PODS = (
    Parameter("limit", "at most this many placed and this many waiting pods", _number(MOST_ROWS)),
    Parameter("queue", "only in this queue"),
)
ARRAY_INDEX = Parameter("arrayIndex", "of this index of an array", {"type": "integer"})
LOG = (
    ARRAY_INDEX,
    Parameter("container", "which container"),
    Parameter("tailLines", "only the last lines", {"type": "integer"}),
    Parameter("limitBytes", "only the first bytes", {"type": "integer"}),
    Parameter("sinceSeconds", "only lines that are younger", {"type": "integer"}),
    Parameter("timestamps", "a time before each line", _FLAG),
)
RUN_UID = Parameter("run", "the uid of the Run; of an index of an array: UID.INDEX")
RENDEZVOUS = (
    Parameter("attempt", "default: the current attempt", {"type": "integer"}),
    Parameter("wait", "seconds to wait until all addresses are known", _number(25)),
)
UPLOAD = (
    Parameter("Upload-Offset", "where the piece begins", {"type": "integer"}, "header", True),
    Parameter("Upload-Length", "size of the whole blob", {"type": "integer"}, "header", True),
)
EVENTS = (
    Parameter("epoch", "from the previous answer"),
    Parameter("after", "from the previous answer", {"type": "integer"}),
    Parameter("wait", "wait until there is an event", _FLAG),
)
WORKER = (
    Parameter("worker", "the name of the worker"),
    Parameter("python", "its version of Python"),
)
STEPS = (
    Parameter("pipeline", "only of this pipeline"),
    Parameter("step", "only of this step"),
    Parameter("limit", "at most this many, the newest", _number(MOST_ROWS)),
)
STUDIES = (Parameter("limit", "at most this many, the newest", _number(MOST_ROWS)),)
TRIALS = (
    Parameter("after", "only trials with a greater number", {"type": "integer", "minimum": 0}),
    Parameter("limit", "at most this many", _number(MOST_ROWS)),
)
OUTPUTS = (Parameter("replica", "only of this replica: ROLE-INDEX"),)
FILES = (
    Parameter("pod", "a pod of the Run", required=True),
    Parameter("path", "relative to the working folder; default: that folder"),
)
FILE_CONTENT = (
    *FILES,
    Parameter("offset", "the first byte; default: 0", _number(1 << 53)),
    Parameter("size", "how many bytes; default: 0", _number(1 << 53)),
)
SELECTOR = (Parameter("labelSelector", "only objects whose labels match"),)
