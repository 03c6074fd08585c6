"""Names the flag whose value was refused, where the schema and the server name the field.

A user who typed `--cpus x` has not written `spec.roles[0].resources.cpu`. `refusal` and `in_text`
translate fields by the flags of the running command. A field that no given flag sets keeps its
name: it comes from a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import click

from windlass.cli.lib import exit_codes

_ROLE = r"spec\.roles\[\d*\]"
_FIELDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"metadata\.name", ("name", "new_name")),
    (r"metadata\.namespace", ("namespace",)),
    # a run
    (r"(metadata|spec\.overrides)\.labels.*", ("label",)),
    (r"(metadata|spec\.overrides)\.annotations.*", ("annotation",)),
    (rf"{_ROLE}\.(replicas|minReplicas)", ("workers",)),
    (rf"{_ROLE}\.resources\.cpu", ("cpus",)),
    (rf"{_ROLE}\.resources\.(memory|shm|disk)", (r"\1",)),
    (rf"{_ROLE}\.devices\[\d*\]\.share", ("share",)),
    (rf"{_ROLE}\.devices\[\d*\]\.models.*", ("gpu_model", "device")),
    (rf"{_ROLE}\.devices\[\d*\]\.kind", ("device",)),
    (rf"{_ROLE}\.devices.*", ("gpus", "device", "share")),
    (rf"{_ROLE}\.ports.*", ("port",)),
    (rf"{_ROLE}\.env(\..*)?", ("env",)),
    (rf"{_ROLE}\.envFrom\[\d+\]\.(secret|config)", (r"env_\1",)),
    (rf"{_ROLE}\.(command|resize).*", (r"\1",)),
    (r"spec\.(framework|queue|priority|preemptible|suspend|restart)", (r"\1",)),
    (r"spec\.(after|array)(\..*|\[.*)?", (r"\1",)),
    (r"spec\.placement\.(gang|movable|pack|topology).*", (r"\1",)),
    (r"spec\.placement\.nodes\.selector.*", ("selector",)),
    (r"spec\.placement\.nodes\.tolerations.*", ("toleration",)),
    (r"spec\.environment\.(image|python|requirements|setup).*", (r"\1",)),
    (r"spec\.mounts.*", ("mount",)),
    (r"spec\.duration\.expected", ("expected",)),
    (r"spec\.duration\.max", ("timeout",)),
    (r"spec\.duration\.start", ("start_timeout",)),
    (r"spec\.retries\.limit", ("retries",)),
    (r"spec\.retries\.causes.*", ("retry_on",)),
    (r"spec\.checkpoint\.(signal|grace)", (r"\1",)),
    (r"spec\.checkpoint\.path", ("checkpoint",)),
    (r"spec\.outputs.*", ("output",)),
    (r"spec\.ttlAfterFinished", ("ttl",)),
    # a CronRun
    (r"spec\.schedule", ("schedule",)),
    (r"spec\.timeZone", ("zone", "time_zone")),
    (r"spec\.concurrencyPolicy", ("concurrency",)),
    (r"spec\.startingDeadline", ("deadline",)),
    (r"spec\.successfulHistoryLimit", ("history",)),
    # a queue and its budget
    (r"spec\.(parent|guarantee|limit|lend|weight|order|strict)(\..*)?", (r"\1",)),
    (r"spec\.minRuntime", ("min_runtime",)),
    (r"spec\.maxPriority", ("max_priority",)),
    (r"spec\.halfLife", ("half_life",)),
    (r"spec\.fairSharePreemption", ("fair_share_preemption",)),
    (r"spec\.userFair", ("user_fair",)),
    (r"spec\.userLimits.*", ("user_limit",)),
    (r"spec\.namespaces.*", ("namespaces",)),
    (r"spec\.budget\.deviceHours.*", ("hours",)),
    (r"spec\.budget\.(money|per)", (r"\1",)),
    (r"spec\.budget\.timeZone", ("time_zone",)),
    (r"spec\.budget\.at.*", ("steps",)),
    (r"spec\.budget\.override\.(until|reason)", (r"\1",)),
    # a reservation
    (r"spec\.from", ("start",)),
    (r"spec\.to", ("end",)),
    (r"spec\.duration", ("lasts",)),
    (r"spec\.nodes\.names.*", ("nodes",)),
    (r"spec\.nodes\.selector.*", ("selector",)),
    (r"spec\.amounts.*", ("amount",)),
    (r"spec\.for\.(queues|namespaces|users).*", (r"\1",)),
    (r"spec\.reason", ("reason",)),
    # a price list
    (r"spec\.entries\[\d+\]\.perHour", ("per_hour",)),
    (r"spec\.entries\[\d+\]\.perSecond", ("per_second",)),
    (r"spec\.entries\[\d+\]\.nodeClass", ("node_class",)),
    (r"spec\.entries\[\d+\]\.(device|model)", ("device",)),
    (r"spec\.entries\[\d+\]\.(purchase|life|watts|pue|kwh|support|space|form)", (r"\1",)),
    (r"spec\.currency", ("currency",)),
    (r"spec\.effectiveFrom", ("since",)),
)
"""A field, and the parameters of commands that may have set it."""
_FIELD = re.compile(r"\b(?:spec|metadata)\.[A-Za-z]+(?:\[\d*\])?(?:\.[A-Za-z]+(?:\[\d*\])?)*")
_TWICE = re.compile(r"(--[a-z-]+)( [^()]*)? \(\1\)")
"""`--queue (--queue)`: a sentence that named the flag and, in parentheses, its field."""
_TEMPLATE = "spec.template.spec."
_VALUE = re.compile(r"(?:Invalid|Unsupported|Duplicate) value: ")
_CHOICES = "supported values: "
_EXAMPLE = re.compile(r" \(e\.g\. .*\)$")
_GIVEN = (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT)


def refusal(
    causes: Iterable[tuple[str, str]], title: str, code: int = exit_codes.INVALID
) -> exit_codes.CliError:
    """The error for refused fields: each a path and a message of the schema. `title` begins it
    unless one flag is the only cause."""
    found = [(_typed(field, message), field, message) for field, message in causes]
    if len(found) == 1 and (typed := found[0][0]):
        return exit_codes.CliError(f"{typed} cannot be used.", _remedy(found[0][2]), code)
    return exit_codes.CliError(title, "\n".join(_line(*each) for each in found), code)


def _line(typed: str, field: str, message: str) -> str:
    if typed:
        return f"{typed}: {_detail(message)}"
    if field in ("", "spec"):  # a rule about several fields
        return _remedy(message)
    return f"{field}: {message}"


def line(field: str, message: str) -> str:
    """`--cpus x: must be a quantity`; empty if no given flag sets the field."""
    typed = _typed(field, message)
    return f"{typed}: {_detail(message)}" if typed else ""


def in_text(text: str) -> str:
    """A sentence with the flags of this command instead of fields; unchanged if a file was
    given."""
    context = click.get_current_context(silent=True)
    if context is None or context.params.get("file"):
        return text

    def flag(found: re.Match[str]) -> str:
        named = [each for each in _parameters(context, found[0]) if isinstance(each, click.Option)]
        return _label(named[0]) if named else found[0]

    return _TWICE.sub(r"\1\2", _FIELD.sub(flag, text))


def _typed(field: str, message: str) -> str:
    """`--cpus x`, as the user typed it."""
    context = click.get_current_context(silent=True)
    if context is None:
        return ""
    refused, _ = _split(message)
    for parameter in _parameters(context, field):
        name = parameter.name or ""
        if context.get_parameter_source(name) not in _GIVEN:
            continue
        entries = _entries(context.params.get(name))
        fitting = [each for each in entries if _contains(each, refused)]
        if context.params.get("file") and not fitting:
            continue
        chosen = (fitting or (entries if len(entries) == 1 else []))[:1]
        return " ".join([_label(parameter), *chosen])
    return ""


def _parameters(context: click.Context, field: str) -> list[click.Parameter]:
    """The parameters of the command that set a field, in the order of the table."""
    if field.startswith(_TEMPLATE):
        field = "spec." + field.removeprefix(_TEMPLATE)
    own = {parameter.name: parameter for parameter in context.command.params}
    for pattern, names in _FIELDS:
        if found := re.fullmatch(pattern, field):
            known = [own[name] for each in names if (name := found.expand(each)) in own]
            if known:
                return known
    return []


def _label(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return str(parameter.name)
    return max((each for each in parameter.opts if each.startswith("--")), key=len)


def _entries(value: Any) -> list[str]:
    if value is None or isinstance(value, bool):
        return []
    return [str(each) for each in value] if isinstance(value, tuple | list) else [str(value)]


def _contains(entry: str, refused: Any) -> bool:
    if isinstance(refused, dict):
        return all(str(key) in entry for key in refused)
    return refused is not None and str(refused) in entry


def _split(message: str) -> tuple[Any, str]:
    """The refused value (None if the message has none), and what is allowed."""
    head = _VALUE.match(message)
    if head is None:
        return None, message
    try:
        value, end = json.JSONDecoder().raw_decode(message, head.end())
    except ValueError:
        return None, message
    return value, message[end:].removeprefix(": ")


def _detail(message: str) -> str:
    allowed = _EXAMPLE.sub("", _split(message)[1])
    if allowed.startswith(_CHOICES):
        return "must be one of " + allowed.removeprefix(_CHOICES).replace('"', "")
    return allowed


def _remedy(message: str) -> str:
    detail = _detail(message)
    is_predicate = detail.startswith(("must ", "needs "))
    return exit_codes.sentence(f"It {detail}" if is_predicate else detail)


def checked(faults: Sequence[Any], title: str) -> None:
    """Raises if there are problems of `kinds.validate`."""
    if faults:
        raise refusal([(fault.path, fault.message) for fault in faults], title)
