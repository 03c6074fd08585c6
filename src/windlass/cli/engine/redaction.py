"""Removes what may be secret from objects and texts before they leave a site. Pure.

Objects lose what users wrote: commands, values of variables, scripts, the content of Secrets and
ConfigMaps, annotations of others, and the output that a failed container left in its status. What
remains, and every log, is searched for the usual forms of keys, tokens and passwords. Names of
users, namespaces, runs, queues and nodes stay: without them a report cannot be followed.
"""

from __future__ import annotations

import re
from typing import Any

REDACTED = "(redacted)"

_CONTENT = frozenset({"command", "args", "setup", "data", "binaryData", "stringData"})
_OURS = re.compile(r"(^|\.)(windlass\.dev|kubernetes\.io)/")
_APPLIED = "last-applied"
_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S
        ),
        REDACTED,
    ),
    (re.compile(r"\bwl_[A-Za-z0-9]+_[A-Za-z0-9_-]{20,}"), REDACTED),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)?"), REDACTED),
    (re.compile(r"\b(AKIA|ASIA)[0-9A-Z]{16}\b"), REDACTED),
    (re.compile(r"\b(gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[bp]-)[A-Za-z0-9_-]{16,}"), REDACTED),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {REDACTED}"),
    (re.compile(r"://[^\s/@]+@"), f"://{REDACTED}@"),
    (
        re.compile(
            r"(?i)([\w.-]*(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|"
            r"account[_-]?key|credential|signature)[\w-]*[\"']?\s*[=:]\s*)"
            r"(\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)"
        ),
        rf"\1{REDACTED}",
    ),
)


def text(given: str) -> str:
    """The text without keys, tokens and passwords, as far as they can be recognised."""
    for pattern, replacement in _SECRETS:
        given = pattern.sub(replacement, given)
    return given


def obj(given: Any) -> Any:
    """A copy of an object, or of a list of objects, without what users wrote."""
    if isinstance(given, dict):
        return {key: _field(key, value) for key, value in given.items() if key != "managedFields"}
    if isinstance(given, list):
        return [obj(each) for each in given]
    return text(given) if isinstance(given, str) else given


def _field(key: str, value: Any) -> Any:
    if key in _CONTENT and value:
        return _counted(value)
    if key == "env" and value:
        return _names_only(value)
    if key == "annotations" and isinstance(value, dict):
        return {name: _annotation(name, found) for name, found in value.items()}
    if key == "terminated" and isinstance(value, dict) and value.get("message"):
        # A container's last output: the kubelet copies it there.
        return obj(value) | {"message": REDACTED}
    return obj(value)


def _counted(value: Any) -> Any:
    if isinstance(value, dict):
        return dict.fromkeys(value, REDACTED)
    return f"(redacted: {len(value)} words)" if isinstance(value, list) else REDACTED


def _names_only(value: Any) -> Any:
    """Of a list of variables, or of a mapping, the names."""
    if isinstance(value, dict):
        return dict.fromkeys(value, REDACTED)
    return [
        obj(each) | ({"value": REDACTED} if "value" in each else {}) if isinstance(each, dict)
        else REDACTED
        for each in value
    ]  # fmt: skip


def _annotation(name: str, value: Any) -> Any:
    shown = _OURS.search(name) and _APPLIED not in name
    return text(value) if shown and isinstance(value, str) else REDACTED
