"""Types of single fields that several kinds share, with the limits that every engine enforces.

The constraints are read by msgspec when an object is decoded and by `kinds.schema` when the CRDs
are written, so a cluster and the embedded server refuse the same values. Patterns use only what
Go's RE2 and Python's `re` both understand.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

_UNIT: Final = "[1-9][0-9]{0,8}"
_DURATION: Final = "".join(f"({_UNIT}{unit})?" for unit in ("d", "h", "m", "s", "ms"))

Duration = Annotated[str, Meta(pattern=f"^{_DURATION}$", min_length=2, max_length=40)]
"""More than zero: `90s`, `2h`, `1h30m`, `7d`, `250ms`. `kinds.duration` reads it."""

DurationOrZero = Annotated[str, Meta(pattern=f"^(0s|{_DURATION})$", min_length=2, max_length=40)]

_QUANTITY: Final = r"[0-9]{1,18}(\.[0-9]{1,9})?([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?"

Quantity = (
    Annotated[int, Meta(ge=0)] | Annotated[str, Meta(pattern=f"^{_QUANTITY}$", max_length=32)]
)
"""Zero or more: `8`, `500m`, `32Gi`. `kinds.quantity` reads it exactly."""

QuantityOrAuto = (
    Annotated[int, Meta(ge=0)]
    | Annotated[str, Meta(pattern=f"^(auto|{_QUANTITY})$", max_length=32)]
)

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"

DnsLabel = Annotated[str, Meta(pattern=f"^{_LABEL}$", max_length=63)]
RoleName = Annotated[str, Meta(pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=20)]
ObjectName = Annotated[str, Meta(pattern=f"^{_LABEL}(\\.{_LABEL})*$", max_length=253)]
EnvName = Annotated[str, Meta(pattern="^[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]
ResourceName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9./]*[a-z0-9])?$", max_length=128)]
"""What a queue counts: `cpu`, `memory`, `gpu`, `gpu/h100`."""

AbsolutePath = Annotated[str, Meta(pattern=r"^/[^\x00:]*$", max_length=1024)]
Text = Annotated[str, Meta(max_length=1024)]
Script = Annotated[str, Meta(max_length=65536)]
Argument = Annotated[str, Meta(min_length=0, max_length=65536)]
Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
"""RFC 3339, as Kubernetes writes it: `2026-01-01T10:20:00Z`."""
