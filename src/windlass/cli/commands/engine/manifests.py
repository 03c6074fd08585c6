"""`windlass manifests`: an installation as a Helm chart or as a kustomize base."""

from __future__ import annotations

import importlib
import os
import shlex
from pathlib import Path
from typing import Any

import click

from windlass.cli.commands.engine import install
from windlass.cli.lib import base, exit_codes
from windlass.cli.lib.output import Output
from windlass.kinds.values import times

_SECRETS = ("AUTHORITY", "SERVER_TLS", "METRICS_TLS")


@base.command(
    examples=(
        "windlass manifests helm chart/ --image registry.example/windlass@sha256:...",
        "helm install windlass chart/ -n kube-system",
        "windlass manifests kustomize base/ && kubectl apply --server-side -k base/",
    )
)
@click.argument("form", type=click.Choice(["helm", "kustomize"]))
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@install.choices
def manifests(out: Output, form: str, folder: Path, **given: str) -> None:
    """Write what `windlass install` would apply to FOLDER, as a Helm chart or a kustomize base.

    Writing to the same FOLDER again updates it. The values.yaml of a chart stays; so do the
    keys of the server in secrets.yaml of a base, until they must be renewed.
    """
    chart: Any = importlib.import_module("windlass.install.chart")
    options = install.options_of({}, given)
    files: dict[str, str]
    kept: dict[str, str]
    if form == "helm":
        files = chart.helm(options)
        kept = {"values.yaml": files.pop("values.yaml")}
        follow_up = f"helm install windlass {shlex.quote(str(folder))} -n kube-system"
    else:
        certificates = _certificates(folder / "secrets.yaml", options)
        files, secrets = chart.kustomize(options, certificates)
        kept = {"secrets.yaml": secrets}
        follow_up = f"kubectl apply --server-side -k {shlex.quote(str(folder))}"
    try:
        written = [_write(folder / name, text) for name, text in files.items()]
        written += [
            _write(folder / name, text, secret=True)
            for name, text in kept.items()
            if not (folder / name).exists() or form == "kustomize"
        ]
    except OSError as problem:
        raise exit_codes.CliError(
            f"{problem.filename} cannot be written: {problem.strerror}.", "Choose another folder."
        ) from problem
    out.say(f"{folder}: {len(written)} files written")
    out.hint(f"Apply it: {follow_up}")
    out.result({"folder": str(folder.absolute()), "files": sorted(map(str, written))},
               names=map(str, written))  # fmt: skip


def _certificates(file: Path, options: Any) -> Any:
    """Those of the base that is there, renewed if necessary; else new ones."""
    import yaml

    modules = install.install_modules()
    known = None
    if file.exists():
        found = {each["metadata"]["name"]: each for each in yaml.safe_load_all(file.read_text())}
        known = modules.apply.certificates_of(
            *(found.get(getattr(modules.names, each)) for each in _SECRETS)
        )
    service = options.server_names(modules.names.SERVER, modules.names.SYSTEM)
    return modules.certificates.ensure(known, service, times.now())


def _write(path: Path, text: str, *, secret: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o600 if secret else 0o666
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
        file.write(text)
    return path
