"""The glossary names packages that exist, and the terms that other pages rely on."""

from __future__ import annotations

import re

from tools import links

ROWS = re.findall(
    r"^\| ([^|]+) \| ([^|]+) \| (`[^|]+) \|$",
    (links.ROOT / "docs/glossary.md").read_text(),
    re.MULTILINE,
)
NEEDED = (
    "Workload", "Pod", "Replica", "Gang", "Elastic", "Queue", "Quota tree", "Guarantee", "Limit",
    "Lend", "Borrow", "Reclaim", "Entitlement", "Dominant share", "Reservation (of a start)",
    "Firm, tentative", "Shadow", "Backfill", "Preemption", "Preemptor, victim", "Reprieve",
    "Nomination", "Eviction", "Assignment", "Assume", "Informer", "Snapshot", "Decision", "Verdict",
    "Reason", "Prefilter", "Equivalence class", "Epoch", "Expectations", "Zygote", "Shim",
    "Sandbox", "Mailbox", "Ledger", "Usage interval",
)  # fmt: skip


def test_the_terms_that_a_newcomer_needs_are_defined() -> None:
    assert set(NEEDED) <= {term for term, _, _ in ROWS}


def test_no_term_is_defined_twice() -> None:
    terms = [term for term, _, _ in ROWS]
    assert sorted(terms) == sorted(set(terms))


def test_every_package_of_the_glossary_exists() -> None:
    named = {name for _, _, packages in ROWS for name in re.findall(r"`([\w/]+)`", packages)}
    source = links.ROOT / "src/windlass"
    assert [name for name in sorted(named) if not (source / name / "__init__.py").is_file()] == []
