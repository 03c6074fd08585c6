"""Bodies of platform requests as structs: unknown fields and wrong types are refused."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from windlass.server.http import bodies
from windlass.server.platform.call import PlatformCall
from windlass.store import errors

T = TypeVar("T")


async def read(call: PlatformCall, kind: type[T]) -> T:
    value = await bodies.read_object(call.request)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as problem:
        raise errors.BadRequest(f"the body is not valid: {problem}") from None
