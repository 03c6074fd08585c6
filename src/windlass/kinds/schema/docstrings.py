"""Reads the docstrings of struct classes and of their fields from the source.

`kinds.schema_export` and the reference pages use them as descriptions (`kubectl explain`). The
docstring of a field is the string below it.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect

from windlass.kinds.schema.type_tree import StructClass


def of_struct(struct: StructClass) -> str:
    """The first paragraph of the class's docstring, on one line."""
    return _one_line((struct.__dict__.get("__doc__") or "").split("\n\n")[0])


def of_field(struct: StructClass, name: str) -> str:
    """The text below a field in the class that declares it; "" if there is none."""
    for ancestor in struct.__mro__:
        found = _module_fields(ancestor.__module__).get(ancestor.__name__, {}).get(name)
        if found is not None:
            return found
    return ""


@functools.cache
def _module_fields(module: str) -> dict[str, dict[str, str]]:
    """Class -> field -> text, of every class in a module."""
    if not module.startswith("windlass."):
        return {}
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    return {node.name: _fields(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _fields(declared: ast.ClassDef) -> dict[str, str]:
    found = {}
    for statement, following in zip(declared.body, declared.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[statement.target.id] = _one_line(following.value.value)
    return found


def _one_line(text: str) -> str:
    return " ".join(text.split())
