"""The lock, the bill of materials and the audit of a release."""

from __future__ import annotations

import json
import urllib.error
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tools import release

HASH = "sha256:" + "a" * 64
LOCKED = f"""\
aiohttp==3.14.5 \\
    --hash={HASH} \\
    --hash=sha256:{"b" * 64}
    # via windlass-platform (pyproject.toml)
numpy==2.3.0 ; python_full_version < '3.12' \\
    --hash={HASH}
    # via
    #   aiohttp
    #   windlass-platform (pyproject.toml)
numpy==2.5.0 ; python_full_version >= '3.12' \\
    --hash={HASH}
    # via aiohttp
"""
TESTED = "aiohttp==3.14.5\nnumpy==2.3.0 ; x\nnumpy==2.5.0 ; y\n"
WANTED = [Requirement("aiohttp>=3.12"), Requirement("numpy>=2")]


def test_the_lock_of_this_repository_is_what_pyproject_asks_for() -> None:
    texts = release.LOCK.read_text(), release.TESTED.read_text()
    assert list(release.check(*texts, release.wanted())) == []


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("aiohttp==3.14.5", "aiohttp==3.1.0", "does not fit aiohttp>=3.12"),
        ("aiohttp==3.14.5", "other==1", "aiohttp is missing"),
        ("aiohttp==3.14.5", "aiohttp==3.99", "is not the version that the tests run with"),
        (f" \\\n    --hash={HASH} \\\n    --hash=sha256:{'b' * 64}", "", "aiohttp has no hash"),
    ],
)
def test_a_lock_that_fell_behind_is_named(before: str, after: str, problem: str) -> None:
    assert list(release.check(LOCKED, TESTED, WANTED)) == []
    changed = LOCKED.replace(before, after)
    assert any(problem in each for each in release.check(changed, TESTED, WANTED))


def test_the_bill_of_materials_is_valid_and_has_every_package_with_its_hashes(
    tmp_path: Path,
) -> None:
    assert release.sbom(tmp_path / "build/sbom.json") == 0
    bill = json.loads((tmp_path / "build/sbom.json").read_text())
    listed = {(each["name"], each["version"]) for each in bill["components"]}
    packages = release.pinned(release.LOCK.read_text())
    assert listed == {(each.name, each.version) for each in packages}
    assert all(each["hashes"] for each in bill["components"])
    (own,) = [each for each in bill["dependencies"] if each["ref"] == "windlass-platform"]
    direct = {each.split("@")[0] for each in own["dependsOn"]}
    assert direct == {requirement.name.lower() for requirement in release.wanted()}


def test_known_vulnerabilities_fail_and_silence_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    packages = release.pinned(LOCKED)

    def answers(url: str) -> dict[str, Any]:
        known = {"id": "PYSEC-1", "fixed_in": ["3.15"]}
        over = {"id": "PYSEC-2", "withdrawn": "2026-01-01"}
        return {"vulnerabilities": [known, over] if "aiohttp" in url else []}

    def silence(url: str) -> dict[str, Any]:
        raise urllib.error.URLError("no route")

    assert release.audit(packages, answers) == 1
    assert "aiohttp 3.14.5: PYSEC-1, fixed in 3.15" in capsys.readouterr().out
    assert release.audit(packages, silence) == 0
    assert "not checked, because PyPI did not answer: 3 of 3" in capsys.readouterr().out
