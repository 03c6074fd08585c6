"""Engines that share a machine are found by their processes."""

from __future__ import annotations

from pathlib import Path

from windlass.cli.engine import other_engines


def process(proc: Path, pid: int, *words: str) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cmdline").write_bytes("\0".join(words).encode() + b"\0")


def test_other_engines_are_found_and_the_own_one_is_left_out(tmp_path: Path) -> None:
    supervisor = ("python3", "-m", "windlass.cli.engine.supervisor", "--state")
    process(tmp_path, 10, *supervisor, "/a/own", "--listen", "x")
    process(tmp_path, 11, *supervisor, "/b/other")
    process(tmp_path, 12, "sleep", "--state", "/c")
    process(tmp_path, 13, "python3", "-m", "windlass.cli.engine.supervisor")
    (tmp_path / "14").mkdir()  # it has ended meanwhile
    (tmp_path / "uptime").write_text("1")
    found = other_engines.states(Path("/a/own"), tmp_path)
    assert found == [Path("/b/other")]
    text = other_engines.warning(found)
    assert "Another engine runs on this machine (/b/other)" in text
    assert text.endswith("windlass down --state /b/other")
    assert "2 other engines run" in other_engines.warning([*found, Path("/d")])
