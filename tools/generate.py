"""Writes every generated file: CRDs, manifests, editor schemas, reference pages.

python -m tools.generate            writes them
python -m tools.generate --check    changes nothing; fails with the list of stale files
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import yaml

from tools import reference
from windlass.install import options
from windlass.install.manifests import dashboard, monitoring, render
from windlass.kinds import registry, schema_export

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("deploy", "deploy/crds", "deploy/monitoring", "docs/schemas", "docs/reference")

_MONITORED = """\
# What `windlass install --monitoring monitoring/prometheus-k8s` applies in addition.
"""
_INSTALLED = """\
# What `windlass install` applies besides crds/, to be read and reviewed. To have it applied by
# others, print it with its certificates: windlass install --dry-run -o yaml
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="fail if a file is stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    options = parser.parse_args(arguments)
    stale = stale_files(options.root)
    if options.check:
        if stale:
            print("stale, run `python -m tools.generate`:", *sorted(stale), sep="\n  ")
        return 1 if stale else 0
    for path in stale:
        write(options.root, path)
        print(path)
    return 0


def generated() -> dict[str, str]:
    """Path below the repository -> content, of every generated file."""
    files: dict[str, str] = {}
    for kind in registry.OWN:
        resource = kind.resource
        crd = yaml.dump(schema_export.crd(kind), Dumper=_Plain, sort_keys=False, width=100)
        editor = json.dumps({"$comment": reference.MARK} | schema_export.editor(kind), indent=2)
        files[f"deploy/crds/{resource.key}.yaml"] = f"# {reference.MARK}\n{crd}"
        files[f"docs/schemas/{resource.singular}.json"] = editor + "\n"
        files[f"docs/reference/{resource.singular}.md"] = reference.kind_page(kind)
    files["docs/reference/reasons.md"] = reference.reasons_page()
    parts = render.parts(options.Options(), render.UNMADE)
    others = [obj for part in parts if part.name != "kinds" for obj in part.objects]
    files["deploy/windlass.yaml"] = f"# {reference.MARK}\n{_INSTALLED}{render.as_yaml(others)}"
    watched = options.Options(monitoring="monitoring/prometheus-k8s")
    shown = render.as_yaml(list(monitoring.objects(watched)))
    files["deploy/monitoring/windlass.yaml"] = f"# {reference.MARK}\n{_MONITORED}{shown}"
    board = {"__comment": reference.MARK} | dashboard.queues_and_components()
    files["deploy/monitoring/dashboard.json"] = json.dumps(board, indent=2) + "\n"
    return files


def stale_files(root: Path) -> list[str]:
    """Generated files that are missing, differ, or should not exist any more."""
    wanted = generated()
    found = {
        str(path.relative_to(root)): path.read_text()
        for folder in FOLDERS
        for path in (root / folder).glob("*")
        if path.is_file()
    }
    ours = {path for path, text in found.items() if path in wanted or reference.MARK in text}
    return sorted(path for path in wanted.keys() | ours if wanted.get(path) != found.get(path))


def write(root: Path, path: str) -> None:
    content = generated().get(path)
    if content is None:
        (root / path).unlink()
        return
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(content)


class _Plain(yaml.SafeDumper):
    """YAML without anchors: CRDs are read by people."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


if __name__ == "__main__":
    sys.exit(main())
