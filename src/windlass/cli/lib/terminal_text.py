"""Text from objects and jobs, made harmless for a terminal.

Messages, names, labels and reasons may come from a job or from another team. A terminal obeys
control characters in them: they can move the cursor, hide lines, change the title or the
clipboard, and reverse the direction of text. `cli.lib.output` passes everything through `clean`,
except what is raw by contract: `windlass logs`, `exec`, YAML and files. Pure.
"""

from __future__ import annotations

import json
import re
import secrets

_OBEYED = re.compile(
    # C0 without tab and newline, DEL, C1; separators of lines; direction of text; tags.
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
    "\U000e0000-\U000e007f]"
)
_STYLE = f"\x00{secrets.token_hex(8)}"
"""Stands for ESC in styles of our own until the text is written. No other text can contain it."""


def clean(text: str) -> str:
    """The text with control characters in a visible form: ESC becomes `\\x1b`."""
    return _OBEYED.sub(_visible, text)


def one_line(text: str) -> str:
    """The same on one line: a message cannot look like two."""
    return clean(" ".join(text.split()))


def in_json(document: str) -> str:
    """A JSON document in which these characters are escaped; its meaning is the same."""
    return _OBEYED.sub(lambda found: json.dumps(found[0])[1:-1], document)


def protect(styled: str) -> str:
    """Marks the escape sequences of a text as our own. `finished` restores them."""
    return styled.replace("\x1b", _STYLE)


def finished(text: str, *, raw: bool = False) -> str:
    """The text as it is written: cleaned unless `raw`, with styles of our own."""
    if raw:
        return text.replace(_STYLE, "\x1b")
    return "\x1b".join(clean(part) for part in text.split(_STYLE))


def _visible(found: re.Match[str]) -> str:
    return (
        found[0].encode("ascii", "backslashreplace").decode()
        if found[0] > "\x7f"
        else (f"\\x{ord(found[0]):02x}")
    )
