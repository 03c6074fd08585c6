"""Host ports as numbers that can be compared: port, protocol and the node's address in one.

On one node a port can be taken once for each protocol and address; a pod that takes it on all
addresses (0) conflicts with every pod that takes it on any.
"""

from __future__ import annotations

from collections.abc import Iterable

_PORT_BITS, _PROTOCOL_BITS = 16, 2
_LOW = (1 << (_PORT_BITS + _PROTOCOL_BITS)) - 1


def host_port(port: int, protocol: int = 0, address: int = 0) -> int:
    """A plain port number means this port of TCP on all addresses."""
    return address << (_PORT_BITS + _PROTOCOL_BITS) | protocol << _PORT_BITS | port


def number(port: int) -> int:
    """The plain port number."""
    return port & ((1 << _PORT_BITS) - 1)


def clash(one: int, other: int) -> bool:
    if one == other:
        return True
    if (one ^ other) & _LOW:
        return False
    return one <= _LOW or other <= _LOW


def clashing(wanted: Iterable[int], known: Iterable[int]) -> list[int]:
    """Those of the known ports that any of the wanted ones clashes with."""
    wanted = tuple(wanted)
    return [port for port in known if any(clash(port, each) for each in wanted)]
