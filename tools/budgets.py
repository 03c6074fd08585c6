"""Keeps files and functions readable: `python -m tools.budgets`, called by `make check`.

A file is at most 600 lines, a function at most 60. A folder of the package has at most 16 modules.
A function takes at most 8 parameters; keyword-only ones with a default are options and do not
count, nor do the options of a command or the cases of a test. The tail is what makes a codebase
hard to read, so the limits are on the largest, not on the average.
"""

from __future__ import annotations

import ast
import collections
import sys
from pathlib import Path

FILE_LINES, FUNCTION_LINES = 600, 60
FOLDER_MODULES, PARAMETERS = 16, 8
ROOT = Path(__file__).parent.parent


def oversized(path: Path) -> list[str]:
    """What in the file is over budget, one sentence each."""
    text = path.read_text()
    where = path.relative_to(ROOT)
    found = []
    if (lines := text.count("\n")) > FILE_LINES:
        found.append(f"{where}: {lines} lines; a file has at most {FILE_LINES}")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                found.append(
                    f"{where}:{node.lineno}: {node.name} has {length} lines; "
                    f"a function has at most {FUNCTION_LINES}"
                )
            if where.parts[0] == "src" and (count := parameters(node)) > PARAMETERS:
                found.append(
                    f"{where}:{node.lineno}: {node.name} takes {count} parameters; "
                    f"a function takes at most {PARAMETERS}"
                )
    return found


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many parameters a caller has to know. Click calls commands, with all their options."""
    if any("command" in ast.unparse(each) for each in node.decorator_list):
        return 0
    positional = [*node.args.posonlyargs, *node.args.args]
    options = sum(default is not None for default in node.args.kw_defaults)
    receiver = bool(positional) and positional[0].arg in ("self", "cls")
    return len(positional) - receiver + len(node.args.kwonlyargs) - options


def crowded(package: Path) -> list[str]:
    """Folders with too many modules to be read at a glance, one sentence each."""
    counts = collections.Counter(
        path.parent for path in package.rglob("*.py") if path.name != "__init__.py"
    )
    return [
        f"{folder.relative_to(ROOT)}: {count} modules; a folder has at most {FOLDER_MODULES}"
        for folder, count in sorted(counts.items())
        if count > FOLDER_MODULES
    ]


def main() -> int:
    sources = [
        p for folder in ("src", "tests", "bench", "tools") for p in ROOT.glob(f"{folder}/**/*.py")
    ]
    found = [line for path in sorted(sources) for line in oversized(path)]
    found += crowded(ROOT / "src")
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
