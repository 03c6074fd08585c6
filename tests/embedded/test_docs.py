"""The documentation on a real engine and in a real browser: output is real, search finds pages."""

from __future__ import annotations

import functools
import http.server
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import browser
from tests.unit.cli.invoking import Result, invoke
from windlass.cli.lib import exit_codes as exits

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
_PASSING = re.compile(r"run/\S+ (Queued|Starting|Running): ")
_RANDOM = (
    (r"\bsh-[a-z0-9]{5}\b", "sh-X"),
    (r"-worker-0-[a-z0-9]{8}", "-worker-0-X"),
    (r"placed on \S+\)", "placed on NODE)"),
    (r"\d{4}-\d\d-\d\dT[\d:]+Z", "TIME"),
    (r"\d+(\.\d+)?", "N"),
)


class Engine:
    """A detached engine, with output as wide as on the pages."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def __call__(self, *arguments: str) -> Result:
        return invoke(*arguments, env={"WINDLASS_STATE": str(self.state), "COLUMNS": "110"})


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(tmp_path_factory.mktemp("docs") / "state")
    assert made("up", "--detach", "--no-kubectl-context").code == exits.OK
    try:
        yield made
    finally:
        made("down", "--stop-runs")


def shown(page: str) -> dict[str, list[str]]:
    """Command -> lines of output, of all console blocks of a page."""
    found: dict[str, list[str]] = {}
    for block in _BLOCK.findall((ROOT / page).read_text()):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE):
            command, _, output = part.partition("\n")
            found.setdefault(command, [line for line in output.splitlines() if line.strip()])
    return found


def plain(lines: list[str]) -> list[str]:
    """Without what differs each time. Sorted, because two streams are mixed."""
    changed = []
    for line in lines:
        text = " ".join(line.split())
        for pattern, name in _RANDOM:
            text = re.sub(pattern, name, text)
        changed.append(text)
    return sorted(changed)


def assert_printed(page: str, command: str, result: Result) -> None:
    """The page shows what was printed, but for states that a run passes through too fast."""
    printed, expected = plain((result.out + result.err).splitlines()), plain(shown(page)[command])
    assert _lasting(printed) == _lasting(expected), page
    assert set(_passing(printed)) <= set(_passing(expected)), page


def _lasting(lines: list[str]) -> list[str]:
    return [line for line in lines if not _PASSING.match(line)]


def _passing(lines: list[str]) -> list[str]:
    return [
        line
        for line in lines
        if _PASSING.match(line) and "waiting: " not in line and "installing packages" not in line
    ]


def test_a_first_job_prints_what_the_pages_show(engine: Engine) -> None:
    command = """windlass run --name hello -- python3 -c "print('hi')\""""
    result = engine(*shlex.split(command)[1:])
    for page in ("README.md", "docs/index.md", "docs/guide/run-a-job.md"):
        assert_printed(page, command, result)


def test_a_failing_job_prints_what_the_page_shows(engine: Engine) -> None:
    command = "windlass run -- sh -c 'echo hello; exit 3'"
    result = engine(*shlex.split(command)[1:])
    assert result.code == 3
    assert_printed("docs/guide/run-a-job.md", command, result)


def test_an_array_prints_what_the_page_shows(engine: Engine) -> None:
    page = "docs/guide/run-a-job.md"
    (command,) = [each for each in shown(page) if each.startswith("windlass run -n sweep")]
    result = engine(*shlex.split(command)[1:])
    assert result.code == exits.FAILED
    # How many indices run at the moments of the messages is another matter each time.
    printed = plain((result.out + result.err).splitlines())
    assert _lasting(printed) == _lasting(plain(shown(page)[command]))
    command = "windlass why sweep --index 3"
    assert_printed(page, command, engine(*shlex.split(command)[1:]))


def test_a_wait_is_explained_as_the_pages_show(engine: Engine) -> None:
    (node,) = engine("status", "--json").json["nodes"]
    cores = str(node["allocatable"]["cpu"])
    engine("submit", "-n", "greedy", "-c", cores, "--expected", "10m", "--", "sleep", "600")
    assert engine("wait", "greedy", "--started").code == exits.OK
    engine("submit", "-n", "patient", "-c", "1", "-m", "1Gi", "--expected", "5m", "--", "true")
    deadline = time.monotonic() + 60
    while (
        "number" in (result := engine("why", "patient")).out or "It would start" not in result.out
    ):
        assert time.monotonic() < deadline, result.out
    for page in ("README.md", "docs/guide/explain-a-wait.md"):
        assert_printed(page, "windlass why patient", result)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.skipif(
    browser.program() is None and os.environ.get("CI") != "true",
    reason="there is no browser; try: python -m tests.harness.browser",
)
async def test_search_finds_a_page_and_nothing_comes_from_the_network(site: str) -> None:
    titles = "[...document.querySelectorAll('.md-search-result__item')].map(e => e.textContent)"
    async with browser.opened(f"{site}/index.html?q=backfill") as page:
        deadline = time.monotonic() + 60
        while not (found := await page.asks(titles)):
            assert time.monotonic() < deadline, "the search found nothing"
        assert any("Reservation and backfill" in each for each in found)
        assert [url for url in page.fetched if not url.startswith((site, "data:", "blob:"))] == []
