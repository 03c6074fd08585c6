"""What an attempt of a Run has besides its assignment: the engine's capabilities, ports, addresses
of nodes, and why its pods cannot be created yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from windlass.control.model import capabilities as engines
from windlass.control.model import ports
from windlass.kinds.reasons import Reason


@dataclasses.dataclass(frozen=True, slots=True)
class BlockedReason:
    """Why no pod of an attempt can be created now."""

    reason: Reason = Reason.WAITING_FOR_CAPACITY
    message: str = ""
    """With the remedy; "": the attempt is not blocked."""
    final: bool = False
    """Waiting does not help: the attempt ends."""


@dataclasses.dataclass(frozen=True, slots=True)
class AttemptContext:
    engine: engines.Engine = dataclasses.field(default_factory=engines.Engine)
    ports: ports.Block | None = None
    """None: the attempt has no ports."""
    blocked: BlockedReason = BlockedReason()
    addresses: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Node -> the address at which other nodes reach it. An engine of one machine needs none."""
