"""Query parameters, parsed by the rules of Kubernetes: unknown ones are ignored, bad values
refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from windlass.kinds.values import times
from windlass.podlogs.options import LogOptions
from windlass.store import errors
from windlass.store.embedded.options import (
    DeleteOptions,
    FieldValidation,
    ListQuery,
    WatchQuery,
    WriteOptions,
)
from windlass.store.interface import Propagation

Query = Mapping[str, str]
IncludeObject = Literal["None", "Metadata", "Object"]
"""The part of each object that a Table contains beside its cells."""

_MAX_INTEGER = 1 << 62


def flag(query: Query, name: str) -> bool:
    """As in Kubernetes: present means true, unless the value is `false` or `0`."""
    return name in query and query[name].lower() not in ("false", "0")


def integer(query: Query, name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        raise errors.BadRequest(f"{name} must be a whole number, not {text[:60]!r}")
    return int(text)


def listing(query: Query) -> ListQuery:
    if "sendInitialEvents" in query:
        raise _forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")
    return ListQuery(
        label_selector=query.get("labelSelector", ""),
        field_selector=query.get("fieldSelector", ""),
        limit=integer(query, "limit") or 0,
        continue_token=query.get("continue", ""),
        resource_version=query.get("resourceVersion", ""),
        resource_version_match=query.get("resourceVersionMatch", ""),
    )


def watching(query: Query, name: str = "") -> WatchQuery:
    """`name` watches one object: the same as a field selector on its name."""
    match = query.get("resourceVersionMatch", "")
    if "sendInitialEvents" in query and match != "NotOlderThan":
        raise _forbidden(
            "resourceVersionMatch",
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        )
    if "sendInitialEvents" not in query and match:
        raise _forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        )
    fields = query.get("fieldSelector", "")
    if name:
        fields = f"{fields},metadata.name={name}" if fields else f"metadata.name={name}"
    return WatchQuery(
        label_selector=query.get("labelSelector", ""),
        field_selector=fields,
        resource_version=query.get("resourceVersion", ""),
        bookmarks=flag(query, "allowWatchBookmarks"),
        initial_events=flag(query, "sendInitialEvents"),
        timeout_seconds=integer(query, "timeoutSeconds") or None,
    )


def writing(query: Query, user: str) -> WriteOptions:
    if not query:
        return WriteOptions(user=user)
    validation = query.get("fieldValidation", "") or "Warn"
    if validation not in get_args(FieldValidation):
        raise _unsupported("fieldValidation", validation, get_args(FieldValidation))
    return WriteOptions(
        user=user, dry_run=dry_run(query), field_validation=cast(FieldValidation, validation)
    )


def dry_run(query: Query) -> bool:
    value = query.get("dryRun", "")
    if value not in ("", "All"):
        raise _unsupported("dryRun", value, ("All",))
    return value == "All"


def deletion(query: Query, body: dict[str, Any] | None) -> DeleteOptions:
    """Options of a delete: from the body, else from the query."""
    requested = _options_in_query(query) | (body or {})
    kind = requested.get("kind", "DeleteOptions")
    if kind != "DeleteOptions":
        raise errors.BadRequest(f"the body of a delete must be DeleteOptions, not {kind!r}")
    conditions = requested.get("preconditions") or {}
    if not isinstance(conditions, dict):
        raise errors.BadRequest("preconditions must be an object")
    runs = requested.get("dryRun") or []
    if runs not in ([], ["All"]):
        raise _unsupported("dryRun", str(runs), ("All",))
    return DeleteOptions(
        propagation=_propagation(requested),
        uid=_text(conditions, "uid"),
        resource_version=_text(conditions, "resourceVersion"),
        grace_seconds=_grace(requested.get("gracePeriodSeconds")),
        dry_run=bool(runs),
    )


def pod_log(query: Query) -> LogOptions:
    """The options of pods/log."""
    since = query.get("sinceTime", "")
    if since:
        try:
            times.parse(since)
        except ValueError as problem:
            raise errors.BadRequest(f"sinceTime: {problem}") from problem
    counts = {}
    for name in ("sinceSeconds", "tailLines", "limitBytes"):
        value = integer(query, name)
        if value is not None and value < 0:
            raise errors.BadRequest(f"{name} must not be negative")
        counts[name] = value
    return LogOptions(
        container=query.get("container", ""),
        follow=flag(query, "follow"),
        previous=flag(query, "previous"),
        timestamps=flag(query, "timestamps"),
        since_seconds=counts["sinceSeconds"],
        since_time=since,
        tail_lines=counts["tailLines"],
        limit_bytes=counts["limitBytes"],
    )


def include_object(query: Query) -> IncludeObject:
    value = query.get("includeObject", "") or "Metadata"
    if value not in get_args(IncludeObject):
        raise _unsupported("includeObject", value, get_args(IncludeObject))
    return cast(IncludeObject, value)


def _options_in_query(query: Query) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if (grace := integer(query, "gracePeriodSeconds")) is not None:
        options["gracePeriodSeconds"] = grace
    if query.get("propagationPolicy"):
        options["propagationPolicy"] = query["propagationPolicy"]
    if "orphanDependents" in query:
        options["orphanDependents"] = flag(query, "orphanDependents")
    if dry_run(query):
        options["dryRun"] = ["All"]
    return options


def _propagation(requested: dict[str, Any]) -> Propagation | None:
    policy = requested.get("propagationPolicy")
    orphan = requested.get("orphanDependents")
    if policy is None:
        if orphan is None:
            return None
        return "Orphan" if orphan is True else "Background"
    if policy not in get_args(Propagation):
        raise _unsupported("propagationPolicy", str(policy), get_args(Propagation))
    return cast(Propagation, policy)


def _grace(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX_INTEGER:
        raise errors.Invalid(
            f"gracePeriodSeconds must be a whole number of seconds, not {str(value)[:60]!r}",
            causes=(errors.Cause("gracePeriodSeconds", "must not be negative"),),
        )
    return value


def _text(values: dict[str, Any], name: str) -> str | None:
    value = values.get(name)
    if value is not None and not isinstance(value, str):
        raise errors.BadRequest(f"preconditions.{name} must be a string")
    return value or None


def _forbidden(field: str, why: str) -> errors.Invalid:
    message = f"Forbidden: {why}"
    return errors.Invalid(
        f"{field}: {message}", causes=(errors.Cause(field, message, "FieldValueForbidden"),)
    )


def _unsupported(field: str, value: str, allowed: tuple[str, ...]) -> errors.Invalid:
    choices = ", ".join(f'"{choice}"' for choice in allowed)
    message = f'Unsupported value: "{value[:60]}": supported values: {choices}'
    return errors.Invalid(
        f"{field}: {message}",
        causes=(errors.Cause(field, message, "FieldValueNotSupported"),),
    )
