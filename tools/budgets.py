"""Keeps files and functions readable: `python -m tools.budgets`, called by `make check`.

A file is at most 600 lines, a function at most 60. The tail is what makes a codebase hard to
read, so the limits are on the largest, not on the average.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

FILE_LINES, FUNCTION_LINES = 600, 60
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
    return found


def main() -> int:
    sources = [
        p for folder in ("src", "tests", "bench", "tools") for p in ROOT.glob(f"{folder}/**/*.py")
    ]
    found = [line for path in sorted(sources) for line in oversized(path)]
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
