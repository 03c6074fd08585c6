"""Pages that stand alone: text, plots as SVG inside, tables; nothing is fetched. Pure."""

from __future__ import annotations

import html
import string
from collections.abc import Iterable, Sequence

_PAGE = string.Template("""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>$title</title>
<style>
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d0d7de; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; } .wide svg { display: block; min-width: 640px; }
svg { max-width: 100%; height: auto; } svg text { fill: currentColor; font-size: 12px; }
svg .axis, svg .grid { stroke: var(--line); } svg path { fill: none; stroke-width: 2; }
svg path.grid { stroke-width: 1; }
svg .bar { fill: currentColor; stroke: none; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em;
  background: currentColor; } .key:first-child { margin-left: 0; }
.s0 { stroke: #2f81f7; color: #2f81f7; } .s1 { stroke: #db6d28; color: #db6d28; }
.s2 { stroke: #2da44e; color: #2da44e; } .s3 { stroke: #a371f7; color: #a371f7; }
.s4 { stroke: #e85aad; color: #e85aad; } .s5 { stroke: #bf8700; color: #bf8700; }
.s6 { stroke: #1b9e9e; color: #1b9e9e; } .s7 { stroke: #8b949e; color: #8b949e; }
</style></head><body>
<h1>$title</h1>
<p>$description</p>
$parts
</body></html>
""")


def make(title: str, description: str, parts: Iterable[str]) -> str:
    """`parts` are HTML already."""
    return _PAGE.substitute(
        title=html.escape(title), description=html.escape(description), parts="\n".join(parts)
    )


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(each)}" for each in header)
    lines = ["".join(f"<td>{html.escape(each)}" for each in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    return f"<h2>{html.escape(title)}</h2>\n" + wide(f"<table><tr>{head}</tr>\n{body}</table>")


def wide(part: str) -> str:
    """What scrolls by itself on a narrow screen."""
    return f'<div class="wide">{part}</div>'


def legend(names: Sequence[str]) -> str:
    """Of a plot's lines or bars, in their colours."""
    shown = [f'<i class="key s{n}"></i>{html.escape(name)}' for n, name in enumerate(names)]
    return f'<p class="legend">{" ".join(shown)}</p>'


def cell(text: str) -> str:
    """For a spreadsheet, to which a cell that begins like this would be a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
