"""The words and phrases that prose, messages and test names avoid, and where they are used.

The glossary has the terms to use instead. `AVOIDED` and `PHRASES` are the only lists; the tests in
tests/unit/docs apply them to pages, to the string literals, docstrings and comments of `src`, and
to the names of tests.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

AVOIDED = re.compile(
    r"\b(whoever|whom|somebody|nobody|hand(s|ed|ing)? (it |them )?in|told|promis\w+"
    r"|(?<!make )room|foreign)\b"
    r"|(?<!-)(?<!<)(?<!without a )(?<!write a )(?<!legend and )\bunits?\b"
    r"|(?<!callers )(?<!user )(?<!users )(?<!person )\bwho\b",
    re.IGNORECASE,
)
PHRASES = re.compile(
    r"goes on without you|what waiting does not help|ctrl-c leaves it|breaks a rule"
    r"|takes back what it is guaranteed|the very devices|is believed to|until the next look"
    r"|(is|are) looked at again|written down now",
    re.IGNORECASE,
)
PROSE = re.compile(
    r"\b(whoever|somebody|nobody|everybody|anybody|told|promise[sd]?|room)\b"
    r"|\bhand(s|ed|ing)? (it |them )?in\b",
    re.IGNORECASE,
)
"""For docstrings and comments, in which `who` and `unit` have their ordinary meanings."""
NAME = re.compile(
    r"(?<![a-z])(whoever|whom|somebody|nobody|anybody|everybody|told|promise[sd]?|rooms?|foreign|wish(?:es)?"
    r"|(?<!without_a_)(?<!its_)(?<!legend_)units?|seats?|handed_in|hands_in|(?<!user_)(?<!users_)(?<!callers_)who)(?![a-z])"
)
"""The same for names, in which the words are joined by underscores."""
_CODE = re.compile(r"`[^`]*`")
_STATEMENT = re.compile(r"\s*(CREATE|INSERT|SELECT|DELETE|UPDATE)\s")
"""SQL: a column that exists keeps its name."""


def avoided(text: str) -> str:
    """The first avoided word or phrase of a text; empty if it has none."""
    match = AVOIDED.search(text) or PHRASES.search(text)
    return match[0] if match else ""


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of string literals that may reach a user: with a blank, and no docstring."""
    tree = ast.parse(source)
    documentation = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if id(node) in documentation or " " not in node.value or _STATEMENT.match(node.value):
            continue
        yield node.lineno, node.value


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring and each comment, without code."""
    for node in ast.walk(ast.parse(source)):
        constant = node.value if isinstance(node, ast.Expr) else None
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
            yield constant.lineno, _CODE.sub("", constant.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], _CODE.sub("", token.string)


def test_names(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of the test functions."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("test_"):
            yield node.lineno, node.name
