"""Pages and messages name the actor and use the vocabulary of the glossary."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import links, words

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/index.md",
    "docs/architecture.md",
    "docs/glossary.md",
    "docs/versioning.md",
    *(f"docs/guide/{page.name}" for page in sorted((links.ROOT / "docs/guide").glob("*.md"))),
    *(f"docs/design/{page.name}" for page in sorted((links.ROOT / "docs/design").glob("*.md"))),
    *(f"docs/reference/{name}.md" for name in (
        "cli", "kubernetes-api", "pods", "scheduling", "sharing",
        "run", "cronrun", "queue", "reservation", "pricelist", "reasons")),
)  # fmt: skip
SOURCES = sorted(path for path in (links.ROOT / "src").rglob("*.py"))


def avoided(text: str) -> list[str]:
    """Lines of prose, without code, that use a word which the glossary has a better one for."""
    return [
        f"{number}: {word!r} in {line.strip()}"
        for number, line in links.prose(text)
        if (word := words.avoided(links.CODE_SPAN.sub("", line)))
    ]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_uses_the_vocabulary_of_the_glossary(page: str) -> None:
    assert avoided(Path(links.ROOT / page).read_text()) == []


@pytest.mark.parametrize("line", ["Whoever runs it", "A unit waits", "It is told why", "Who waits"])
def test_an_avoided_word_is_found(line: str) -> None:
    assert len(avoided(f"# Title\n\n{line}.\n")) == 1


def test_output_of_a_command_is_no_prose() -> None:
    assert avoided("# Title\n\n```console\nNobody has to do anything.\n```\n") == []


# --- messages of the program --------------------------------------------------------------------


def avoided_messages(source: str) -> list[str]:
    return [
        f"{line}: {word!r} in {text!r}"
        for line, text in words.messages(source)
        if (word := words.avoided(text))
    ]


def test_messages_use_the_vocabulary_of_the_glossary() -> None:
    found = {
        str(path.relative_to(links.ROOT)): lines
        for path in SOURCES
        if (lines := avoided_messages(path.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        'log.warning("the run must give room to %s", name)',
        'help="Hand in a job and return at once."',
        'text = f"{name} goes on without you."',
        'raise Error("nobody " + "grants shares")',
    ],
)
def test_an_avoided_message_is_found(source: str) -> None:
    assert len(avoided_messages(source)) == 1


def test_docstrings_identifiers_and_statements_are_no_messages() -> None:
    source = '''"""What nobody reads."""
field = status["told"]
query = "SELECT told FROM node_report"
'''
    assert avoided_messages(source) == []


# --- docstrings and comments --------------------------------------------------------------------


def avoided_comments(source: str) -> list[str]:
    return [
        f"{line}: {match[0]!r}"
        for line, text in words.comments(source)
        if (match := words.PROSE.search(text) or words.PHRASES.search(text))
    ]


def test_docstrings_and_comments_use_the_vocabulary_of_the_glossary() -> None:
    found = {
        str(path.relative_to(links.ROOT)): lines
        for path in SOURCES
        if (lines := avoided_comments(path.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source", ["# nobody waits\n", 'def f():\n    """A user\n    who is told."""\n']
)
def test_an_avoided_comment_is_found(source: str) -> None:
    assert len(avoided_comments(source)) == 1


def test_code_in_a_comment_is_no_prose() -> None:
    assert avoided_comments("# the column `told`\n") == []


# --- names of tests -----------------------------------------------------------------------------

TESTS = sorted((links.ROOT / "tests").rglob("*.py"))


def avoided_names(source: str) -> list[str]:
    return [name for _, name in words.test_names(source) if words.NAME.search(name)]


def test_names_of_tests_use_the_vocabulary_of_the_glossary() -> None:
    found = {
        str(path.relative_to(links.ROOT)): names
        for path in TESTS
        if (names := avoided_names(path.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize("name", ["test_who_runs", "test_a_run_is_told", "test_a_promise_holds"])
def test_an_avoided_name_of_a_test_is_found(name: str) -> None:
    assert avoided_names(f"def {name}() -> None: ...") == [name]
