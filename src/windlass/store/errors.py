"""The errors of the object API: one class per reason, the same in server and client.

The embedded server raises them and sends them as Kubernetes `Status` objects; both clients convert
a `Status` back into the same class. Callers catch classes and do not compare codes.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Final


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """One thing wrong with one field."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


class ApiError(Exception):
    """The object API rejected a request or could not serve it."""

    code: ClassVar[int] = 500
    reason: ClassVar[str] = "InternalError"

    def __init__(
        self,
        message: str,
        *,
        causes: tuple[Cause, ...] = (),
        retry_after: float | None = None,
        details: dict[str, Any] | None = None,
        code: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.causes = causes
        self.retry_after = retry_after
        """Seconds after which the same request may succeed."""
        self.details = details or {}
        """`name`, `group`, `kind` and `uid` of the object, if known."""
        self.status_code = code if code is not None else self.code

    def to_status(self) -> dict[str, Any]:
        details = {key: value for key, value in self.details.items() if value}
        if self.causes:
            details["causes"] = [
                {"reason": c.reason, "message": c.message, "field": c.field} for c in self.causes
            ]
        if self.retry_after is not None:
            details["retryAfterSeconds"] = max(1, round(self.retry_after))
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.status_code,
        }
        if details:
            status["details"] = details
        return status


class BadRequest(ApiError):
    code = 400
    reason = "BadRequest"


class Unauthorized(ApiError):
    code = 401
    reason = "Unauthorized"


class Forbidden(ApiError):
    code = 403
    reason = "Forbidden"


class NotFound(ApiError):
    code = 404
    reason = "NotFound"


class MethodNotAllowed(ApiError):
    code = 405
    reason = "MethodNotAllowed"


class NotAcceptable(ApiError):
    code = 406
    reason = "NotAcceptable"


class AlreadyExists(ApiError):
    code = 409
    reason = "AlreadyExists"


class Conflict(ApiError):
    """The object changed since it was read, or a precondition does not hold."""

    code = 409
    reason = "Conflict"


class Gone(ApiError):
    """The history of the requested resourceVersion is compacted: list again."""

    code = 410
    reason = "Expired"


class TooLarge(ApiError):
    code = 413
    reason = "RequestEntityTooLarge"


class UnsupportedMediaType(ApiError):
    code = 415
    reason = "UnsupportedMediaType"


class Invalid(ApiError):
    """The object breaks its schema or a rule; `causes` names each field."""

    code = 422
    reason = "Invalid"


class TooManyRequests(ApiError):
    code = 429
    reason = "TooManyRequests"


class RequestTimeout(ApiError):
    """The client was too slow; the server did not execute the request."""

    code = 408
    reason = "RequestTimeout"


class ServerTimeout(ApiError):
    code = 504
    reason = "Timeout"


class Unavailable(ApiError):
    """The server cannot be reached or is shutting down."""

    code = 503
    reason = "ServiceUnavailable"


class AnswerLost(Unavailable):
    """The connection broke after the request was sent: the server may have executed it."""


PASSING: Final = (Unavailable, TooManyRequests)
"""The same request may succeed later, without a change of anything."""

_BY_REASON: dict[str, type[ApiError]] = {
    cls.reason: cls
    for cls in (
        BadRequest, Unauthorized, Forbidden, NotFound, MethodNotAllowed, NotAcceptable,
        AlreadyExists, Conflict, Gone, TooLarge, UnsupportedMediaType, Invalid, TooManyRequests,
        RequestTimeout, ServerTimeout, Unavailable,
    )
}  # fmt: skip
_BY_REASON["Gone"] = Gone
_BY_CODE: dict[int, type[ApiError]] = {
    cls.code: cls for cls in reversed(list(_BY_REASON.values())) if cls is not AlreadyExists
}


def from_status(status: dict[str, Any], code: int, retry_after: float | None = None) -> ApiError:
    """The error of a `Status` object or, without a known reason, of an HTTP code."""
    details = dict(status.get("details") or {})
    causes = tuple(
        Cause(c.get("field", ""), c.get("message", ""), c.get("reason", ""))
        for c in details.pop("causes", None) or ()
    )
    if retry_after is None and details.get("retryAfterSeconds"):
        retry_after = float(details["retryAfterSeconds"])
    details.pop("retryAfterSeconds", None)
    cls = _BY_REASON.get(status.get("reason") or "") or _BY_CODE.get(code) or ApiError
    message = status.get("message") or f"the server answered {code}"
    return cls(message, causes=causes, retry_after=retry_after, details=details, code=code)
