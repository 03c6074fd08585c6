"""What a release consists of besides our own code.

    python -m tools.release lock          requirements/release.txt: each version with its hashes
    python -m tools.release check         the lock has what pyproject.toml asks for; no network
    python -m tools.release sbom FILE     a bill of materials of it (CycloneDX 1.6), validated
    python -m tools.release audit         known vulnerabilities of these versions, from PyPI

A release has the versions that the tests ran with: requirements/dev.txt constrains the lock.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK, TESTED = ROOT / "requirements/release.txt", ROOT / "requirements/dev.txt"
EXTRAS = ("node", "objectstore", "postgresql")
"""Extras of a release; the others are for development."""
_ATTEMPTS = 3
_PYPI = "https://pypi.org/pypi/{name}/{version}/json"


@dataclasses.dataclass(frozen=True)
class Pinned:
    """One package of the lock."""

    name: str
    version: str
    hashes: tuple[str, ...]
    needed_by: tuple[str, ...]


def main(arguments: list[str]) -> int:
    match arguments:
        case ["lock"]:
            return lock()
        case ["check"]:
            problems = list(check(LOCK.read_text(), TESTED.read_text(), wanted()))
            return _reported(problems, "requirements/release.txt", "make lock")
        case ["sbom", path]:
            return sbom(Path(path))
        case ["audit"]:
            return audit(pinned(LOCK.read_text()))
    print(__doc__)
    return 2


def lock() -> int:
    command = [
        "uv", "pip", "compile", "--quiet", "--no-header", "--universal", "--generate-hashes",
        "--constraint", str(TESTED.relative_to(ROOT)), "pyproject.toml",
        *(word for extra in EXTRAS for word in ("--extra", extra)),
        "--output-file", str(LOCK.relative_to(ROOT)),
    ]  # fmt: skip
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False).returncode


def wanted(path: Path = ROOT / "pyproject.toml") -> list[Requirement]:
    """What pyproject.toml asks for in a release."""
    project = tomllib.loads(path.read_text())["project"]
    found = [*project["dependencies"]]
    for extra in EXTRAS:
        found += project["optional-dependencies"][extra]
    return [Requirement(each) for each in found]


def pinned(text: str) -> list[Pinned]:
    """The packages of a lock file."""
    found = []
    for block in re.split(r"\n(?=\S)", re.sub(r"\\\n", " ", text.strip())):
        head = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;]+)", block)
        if head is not None:
            via = re.findall(
                r"^ +#(?: via)? +([A-Za-z0-9._-]+)(?: \(pyproject.toml\))?$", block, re.M
            )
            hashes = tuple(re.findall(r"--hash=(sha256:[0-9a-f]{64})", block))
            found.append(Pinned(canonicalize_name(head[1]), head[2], hashes, tuple(via)))
    return found


def check(text: str, tested: str, requirements: Iterable[Requirement]) -> Iterator[str]:
    """What is wrong with the lock."""
    packages = pinned(text)
    versions = {each.name: each.version for each in packages}
    for each in packages:
        if not each.hashes:
            yield f"{each.name} has no hash"
    in_tests: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", tested, re.M):
        in_tests.setdefault(canonicalize_name(name), set()).add(version)
    for name, version in versions.items():
        if version not in in_tests.get(name, {version}):
            yield f"{name} {version} is not the version that the tests run with"
    for requirement in requirements:
        version = versions.get(canonicalize_name(requirement.name), "")
        if not version:
            yield f"{requirement.name} is missing"
        elif not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement.name} {version} does not fit {requirement}"


def sbom(path: Path) -> int:
    """Writes the bill of materials and validates it against the schema of CycloneDX."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = bill(pinned(LOCK.read_text()))
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        print(f"the bill of materials is not valid: {problem}")
        return 1
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"{path}: {len(json.loads(text)['components'])} components, valid CycloneDX 1.6")
    return 0


def bill(packages: list[Pinned]) -> str:
    """The bill of materials as JSON. Licenses are those of the installed packages."""
    from cyclonedx.contrib.hash.factories import HashTypeFactory
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

    licenses, hashed = LicenseFactory(), HashTypeFactory()
    components = []
    for each in packages:
        name = licenses.make_from_string(found) if (found := _license(each.name)) else None
        component = Component(
            name=each.name, version=each.version, type=ComponentType.LIBRARY,
            bom_ref=f"{each.name}@{each.version}", licenses=[name] if name else None,
            purl=PackageURL("pypi", name=each.name, version=each.version),
            hashes=[hashed.from_composite_str(text) for text in each.hashes],
        )  # fmt: skip
        components.append(component)
    version = metadata.version("windlass-platform")
    own = Component(
        name="windlass-platform", version=version, type=ComponentType.APPLICATION,
        bom_ref="windlass-platform", licenses=[licenses.make_from_string("Apache-2.0")],
    )  # fmt: skip
    made = Bom(components=components)
    made.metadata.component = own
    for user in (own, *components):
        parts = [
            component
            for component, each in zip(components, packages, strict=True)
            if user.name in {canonicalize_name(name) for name in each.needed_by}
        ]
        made.register_dependency(user, parts)
    return JsonV1Dot6(made).output_as_string(indent=2) + "\n"


def audit(packages: list[Pinned], fetch: Callable[[str], dict[str, Any]] | None = None) -> int:
    """Prints known vulnerabilities; fails if there are any. What PyPI does not answer is printed
    as not checked, and does not fail: not every machine reaches it."""
    found: list[str] = []
    unknown: list[str] = []
    for position, each in enumerate(packages):
        if len(unknown) == position == _ATTEMPTS:  # no answer at all: do not wait for the others
            unknown = [package.name for package in packages]
            break
        try:
            answer = (fetch or _fetch)(_PYPI.format(name=each.name, version=each.version))
        except (OSError, ValueError):
            unknown.append(each.name)
            continue
        for known in answer.get("vulnerabilities") or ():
            if not known.get("withdrawn"):
                fixed = ", ".join(known.get("fixed_in") or ()) or "no version"
                found.append(f"{each.name} {each.version}: {known['id']}, fixed in {fixed}")
    if unknown:
        print(f"not checked, because PyPI did not answer: {len(unknown)} of {len(packages)}")
    return _reported(found, "requirements/release.txt", "a newer version, and make lock")


def _license(name: str) -> str:
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return ""
    for field in ("License-Expression", "License"):
        if field in about and "\n" not in (given := str(about[field])):
            return given
    return ""


def _fetch(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=20) as answer:
        value: dict[str, Any] = json.load(answer)
    return value


def _reported(problems: list[str], where: str, remedy: str) -> int:
    for each in problems:
        print(f"{where}: {each}")
    if problems:
        print(f"remedy: {remedy}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
