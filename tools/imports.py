"""Finds import cycles in src/windlass: `python -m tools.imports`, called by `make check`.

All imports count: those at the top of a module, those inside functions, and those under
TYPE_CHECKING. Two graphs must be free of cycles: the modules, and the packages as folders (a folder
and the folders inside it are different packages). A cycle between folders shows that one of them
cannot be understood without the other, even where no two modules import each other.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"

Graph = dict[str, set[str]]


def main() -> int:
    graph = module_graph(SOURCE)
    found = [
        *report("modules", cycles(graph), graph),
        *report("packages", cycles(package_graph(graph)), package_graph(graph), graph),
    ]
    print("\n".join(found) if found else f"no import cycles in {len(graph)} modules")
    return 1 if found else 0


def module_graph(source: Path) -> Graph:
    """Module -> modules of the project that it imports, for whatever purpose."""
    paths = {_name(source, path): path for path in source.rglob("*.py")}
    return {name: set(_imports(path, name, paths)) for name, path in sorted(paths.items())}


def package_graph(modules: Mapping[str, Iterable[str]]) -> Graph:
    """Package -> packages that its modules import. Imports of a package that contains the importing
    one, or is contained in it, are left out: a folder may use its own parts."""
    graph: Graph = {}
    for module, imported in modules.items():
        package = _package(module)
        known = graph.setdefault(package, set())
        for other in map(_package, imported):
            if not _contains(package, other) and not _contains(other, package):
                known.add(other)
    return graph


def cycles(graph: Graph) -> list[list[str]]:
    """Strongly connected components of more than one node, largest first (Tarjan's algorithm)."""
    found: list[list[str]] = []
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in number:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], number[other])
        if lowest[node] == number[node]:
            at = stack.index(node)
            component, stack[at:] = stack[at:], []
            if len(component) > 1:
                found.append(sorted(component))

    sys.setrecursionlimit(10_000)
    for node in sorted(graph):
        if node not in number:
            visit(node)
    return sorted(found, key=len, reverse=True)


def report(
    what: str, components: list[list[str]], graph: Graph, modules: Graph | None = None
) -> Iterator[str]:
    """Each cycle with the imports that close it; between packages, with the modules behind them."""
    for component in components:
        yield f"import cycle between {len(component)} {what}:"
        for node in component:
            for other in sorted(graph[node] & set(component)):
                yield f"  {node} -> {other}"
                if modules is not None:
                    yield from (f"      {edge}" for edge in _edges(modules, node, other))


def _edges(modules: Graph, package: str, other: str) -> Iterator[str]:
    for module, imported in modules.items():
        if _package(module) == package:
            for target in sorted(imported):
                if _package(target) == other:
                    yield f"{module} -> {target}"


def _imports(path: Path, name: str, known: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [each if each in known else node.module for each in inner]
        else:
            continue
        yield from (each for each in names if each in known and each != name)


def _name(source: Path, path: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _package(module: str) -> str:
    if (SOURCE / module.replace(".", "/")).is_dir():
        return module
    return module.rpartition(".")[0]


def _contains(outer: str, inner: str) -> bool:
    return inner == outer or inner.startswith(f"{outer}.")


if __name__ == "__main__":
    sys.exit(main())
