"""Building once: two runs at once, a run that was cut short, what to do without Go."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import build

# Programs of Go's own tree: built by the real compiler in seconds, without the network.
_SMALL = """
from tests.harness import build
module = build.Module("small", {})
build.BINARIES = (build.Binary("one", module, "cmd/gofmt"), build.Binary("two", module, "cmd/pack"))
raise SystemExit(build.main())
"""


def start(cache: Path, path: str | None = None) -> subprocess.Popen[str]:
    environment = {"WINDLASS_CACHE": str(cache), "HOME": str(Path.home())}
    environment["PATH"] = path if path is not None else _go_path()
    return subprocess.Popen(
        [sys.executable, "-c", _SMALL],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _go_path() -> str:
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed: install Go 1.26 or newer to build Kubernetes.")
    return f"{Path(go).parent}:/usr/bin:/bin"


def binaries(cache: Path) -> Path:
    return cache / "kubernetes" / f"v{build.KUBERNETES}" / "bin"


def test_two_runs_at_once_build_once(tmp_path: Path) -> None:
    runs = [start(tmp_path), start(tmp_path)]
    outputs = [run.communicate(timeout=250)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    assert sum(output.count("built in") for output in outputs) == 2
    assert sum("waiting for it" in output for output in outputs) == 1
    assert {file.name for file in binaries(tmp_path).iterdir()} == {"one", "two"}


def test_run_continues_where_another_stopped(tmp_path: Path) -> None:
    first = start(tmp_path)
    assert first.wait(timeout=250) == 0
    one = binaries(tmp_path) / "one"
    written = one.stat().st_mtime_ns
    (binaries(tmp_path) / "two").unlink()
    output, _ = start(tmp_path).communicate(timeout=250)
    assert "[1/1] building two" in output
    assert one.stat().st_mtime_ns == written


def test_without_go_it_says_what_to_install(tmp_path: Path) -> None:
    process = start(tmp_path, path="/nonexistent")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "install Go 1.26" in output


def test_failed_build_shows_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", _go_path())
    monkeypatch.setenv("WINDLASS_CACHE", str(tmp_path))
    broken = build.Binary("broken", build.Module("small", {}), "cmd/no-such-program")
    monkeypatch.setattr(build, "BINARIES", (broken,))
    with pytest.raises(build.BuildError, match="no-such-program"):
        build.ensure(lambda text: None)
    assert list(build.missing()) == [broken]


def test_wrapper_module_outbids_the_versions_that_are_not_published() -> None:
    text = build.BINARIES[1].module.go_mod()
    assert f"k8s.io/kubernetes v{build.KUBERNETES}" in text
    for module in build.STAGING_MODULES:
        assert f"\tk8s.io/{module} v0.36.3\n" in text
    assert "replace k8s.io/sample-cli-plugin => ./empty-sample-cli-plugin" in text
