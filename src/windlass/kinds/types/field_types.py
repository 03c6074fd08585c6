"""Types of single fields that several kinds share, with the limits that every engine enforces.

msgspec reads the constraints when it decodes an object, and `kinds.schema_export` when it writes
the CRDs, so a cluster and the embedded server refuse the same values. `must` completes the message
"must ...". Patterns use only the common syntax of Go's RE2 and Python's `re` and end in \\Z, which
the CRDs write as $ (Python's $ accepts a trailing newline).
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from windlass.kinds.types import meta

_UNIT: Final = "[1-9][0-9]{0,8}"
_DURATION: Final = "".join(f"({_UNIT}{unit})?" for unit in ("d", "h", "m", "s", "ms"))
_DURATION_LIKE: Final = "be a duration such as 90s, 2h, 1h30m or 7d"


def text(pattern: str, max_length: int, must: str, min_length: int | None = None) -> Meta:
    """The limits of a string, and the message about them."""
    return Meta(
        pattern=f"^{pattern}\\Z",
        max_length=max_length,
        min_length=min_length,
        extra={"must": must},
    )


Duration = Annotated[str, text(_DURATION, 40, f"{_DURATION_LIKE}, more than zero", 2)]
"""More than zero: `90s`, `2h`, `1h30m`, `7d`, `250ms`. `kinds.values.duration` reads it."""

DurationOrZero = Annotated[str, text(f"(0s|{_DURATION})", 40, f"{_DURATION_LIKE}, or 0s", 2)]

_QUANTITY: Final = r"[0-9]{1,18}(\.[0-9]{1,9})?([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?"
_QUANTITY_LIKE: Final = 'be a quantity such as 8, "0.5", 500m or 32Gi'

Quantity = Annotated[int, Meta(ge=0)] | Annotated[str, text(_QUANTITY, 32, _QUANTITY_LIKE)]
"""Zero or more: `8`, `500m`, `32Gi`. `kinds.values.quantity` reads it exactly."""

QuantityOrAuto = (
    Annotated[int, Meta(ge=0)]
    | Annotated[str, text(f"(auto|{_QUANTITY})", 32, f"{_QUANTITY_LIKE}, or auto")]
)

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL_LIKE: Final = "be lower case letters, digits and '-', with a letter or digit at both ends"

DnsLabel = Annotated[str, text(_LABEL, 63, _LABEL_LIKE)]
RoleName = Annotated[
    str, text("[a-z]([-a-z0-9]*[a-z0-9])?", 20, f"{_LABEL_LIKE}, and begin with a letter")
]
PortName = Annotated[str, text(_LABEL, 15, _LABEL_LIKE)]
ObjectName = Annotated[
    str,
    text(f"{_LABEL}(\\.{_LABEL})*", 253, "be the name of an object: lower case, digits, '-', '.'"),
]
EnvName = Annotated[
    str, text("[A-Za-z_][A-Za-z0-9_]*", 256, "be letters, digits and '_', not a digit first")
]
EnvPrefix = Annotated[str, text("[A-Za-z0-9_]*", 128, "be letters, digits and '_'")]
ResourceName = Annotated[
    str,
    text("[a-z0-9]([-a-z0-9./]*[a-z0-9])?", 128, "name a resource: cpu, memory, gpu, gpu/h100"),
]
"""What a queue counts: `cpu`, `memory`, `gpu`, `gpu/h100`."""

Capability = Annotated[
    str,
    text("[a-z0-9]([-a-z0-9:./]*[a-z0-9])?", 63, "name a capability: shares, isolation:hard"),
]
"""A capability of a node."""

AbsolutePath = Annotated[
    str,
    text(r"/[^\x00-\x1f\x7f:]*", 1024, "be a path that begins with /, without control characters"),
]
OutputPath = Annotated[str, text(r"[^\x00-\x1f]+", 1024, "be a path without control characters", 1)]
Fraction = Annotated[str, text("[1-9][0-9]{0,2}/[1-9][0-9]{0,2}", 7, "be a fraction such as 1/4")]
PythonVersion = Annotated[
    str, text(r"3\.[0-9]{1,2}(\.[0-9]{1,2})?", 8, 'be a version of Python 3 such as "3.11"')
]
Digest = Annotated[str, text("sha256:[0-9a-f]{64}", 71, "be sha256: and 64 hexadecimal digits")]
MountSource = Annotated[
    str,
    text(
        f"((claim|config|secret|dataset):{_LABEL}(\\.{_LABEL})*|host:/[^\\x00-\\x1f\\x7f]*)", 1024,
        "be claim:NAME, host:/path, config:NAME, secret:NAME or dataset:NAME",
    ),
]  # fmt: skip
Schedule = Annotated[
    str,
    text(
        r"(@(hourly|daily|midnight|weekly|monthly|yearly|annually)|[^@ \t]+([ \t]+[^@ \t]+){4})",
        128, "be five fields (minute hour day month weekday) such as 0 3 * * 1-5, or @daily",
    ),
]  # fmt: skip
TimeZone = Annotated[
    str, text("[A-Za-z][A-Za-z0-9_+/-]*", 64, "be a time zone such as UTC or Europe/Berlin")
]

_INDICES: Final = "[0-9]{1,5}(-[0-9]{1,5}(:[0-9]{1,5})?)?"
_INDICES_LIKE: Final = "be indices such as 0-99, 0-99:2 or 1,4,7"
Indices = Annotated[str, text(f"{_INDICES}(,{_INDICES})*", 2048, _INDICES_LIKE)]
"""A set of array indices; `kinds.values.index_set` reads it."""

IndicesOrNone = Annotated[str, text(f"({_INDICES}(,{_INDICES})*)?", 2048, _INDICES_LIKE)]

Text = Annotated[str, Meta(max_length=1024)]
Script = Annotated[str, Meta(max_length=65536)]
Argument = Annotated[str, Meta(max_length=65536)]
LabelKey = Annotated[str, Meta(max_length=317)]
LabelValue = Annotated[str, Meta(max_length=63)]
UserId = Annotated[int, Meta(ge=0, le=2147483647)]
Replicas = Annotated[int, Meta(ge=1, le=4096)]
Priority = Annotated[int, Meta(ge=0, le=1000)]
Labels = Annotated[dict[str, str], Meta(max_length=64)]
_DAY: Final = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_CLOCK: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})"
Time = Annotated[str, text(f"{_DAY}T{_CLOCK}", 64, "be a time such as 2026-01-01T10:20:00Z")]
"""RFC 3339, as Kubernetes writes it: `2026-01-01T10:20:00Z`."""


def keyed(key: str, max_length: int, min_length: int | None = None) -> Meta:
    """The limits of a list whose elements are identified by one field."""
    return Meta(max_length=max_length, min_length=min_length, extra={"key": key})


Conditions = Annotated[list[meta.Condition], keyed("type", 16)]
