"""The chart and the base, rendered by Helm and kustomize themselves, are what `install` applies."""

from __future__ import annotations

import base64
import dataclasses
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness import build
from tests.harness.control_plane import ControlPlane
from tests.kubernetes.conftest import Cli
from tests.unit.cli.invoking import invoke
from windlass.install import chart, names, options
from windlass.install.manifests import render

pytestmark = [pytest.mark.kubernetes, pytest.mark.helm]

CERTIFICATES = render.Certificates(*(f"-----BEGIN {n}-----\nx y\n" for n in "abcdefg"))
KEYS = ("authority", "authorityKey", "bundle", "certificate", "key", "metricsCertificate",
        "metricsKey")  # fmt: skip
STORED = {
    "storage": "s3://windlass/cluster?endpoint=https://storage.example:9000&style=path",
    "storage_secret": "keys", "ledger": "secret:books/url",
}  # fmt: skip
CASES: dict[str, dict[str, str]] = {
    "nothing": {},
    "digest": {"image": "registry.example:5000/windlass@sha256:" + "0" * 64},
    "volume": {"storage_class": "fast", "storage_size": "100Gi", "ledger": "secret:a.b/the-url"},
    "addresses": {"api_address": "10.0.0.1:6443", "server_address": "https://w.example:8443"},
    "monitoring": {"monitoring": "monitoring/prometheus-k8s"},
    "none": {"monitoring": "none"},
    "pull": {"pull_secret": "mine", "environments": "claim:environments"},
    "host mounts": {"host_mounts": "/data,/scratch"},
    "shared": STORED | {"replicas": "3"},
    "all": STORED | {
        "replicas": "2", "pull_secret": "mine", "api_address": "api.example:443",
        "server_address": "https://10.1.2.3", "environments": "/srv/environments",
        "host_mounts": "/data",
        "monitoring": "monitoring/prometheus-k8s",
    },
    "all on a volume": {
        "pull_secret": "mine", "api_address": "[fd00::1]:6443", "ledger": "secret:books/url",
        "server_address": "https://w.example", "environments": "claim:e", "storage_class": "fast",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart, as the command writes it."""
    made = tmp_path_factory.mktemp("chart") / "windlass"
    assert invoke("manifests", "helm", str(made)).code == 0
    return made


def helm(*words: str) -> str:
    done = subprocess.run(
        [build.binary("helm"), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def by_name(listed: Any) -> dict[tuple[str, ...], Any]:
    found = {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each
        for each in listed
        if each
    }
    # As JSON: what is rendered by others has no tuples.
    return {key: json.loads(json.dumps(each)) for key, each in found.items()}


def installed(chosen: options.Options) -> dict[tuple[str, ...], Any]:
    return by_name(o for part in render.parts(chosen, CERTIFICATES) for o in part.objects)


def test_each_option_is_a_value_of_the_chart() -> None:
    fields = {field.name for field in dataclasses.fields(options.Options)}
    # Helm has its own way back.
    assert {value.option for value in chart.VALUES} == fields - {"previous"}


@pytest.mark.parametrize("case", CASES)
def test_helm_renders_what_install_applies(case: str, folder: Path, tmp_path: Path) -> None:
    chosen = options.Options(**CASES[case])
    values: dict[str, Any] = {
        value.name: getattr(chosen, value.option) for value in chart.VALUES
    } | {"certificates": dict(zip(KEYS, dataclasses.astuple(CERTIFICATES), strict=True))}
    (tmp_path / "values.yaml").write_text(
        yaml.safe_dump(values | {"replicas": int(chosen.replicas)})
    )
    text = helm(
        "template", "w", str(folder), "--include-crds", "-f", str(tmp_path / "values.yaml"),
        "--kube-version", build.KUBERNETES, "--api-versions", "monitoring.coreos.com/v1",
    )  # fmt: skip
    rendered, wanted = by_name(yaml.safe_load_all(text)), installed(chosen)
    assert rendered.keys() == wanted.keys()
    for key, obj in wanted.items():
        assert rendered[key] == obj, key


@pytest.mark.parametrize("values", ["replicas=2", "storage=s3://x/y"])
def test_values_that_install_refuses_are_refused(values: str, folder: Path) -> None:
    done = subprocess.run(
        [build.binary("helm"), "template", "w", str(folder), "--set", values,
         "--kube-version", build.KUBERNETES],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "storageSecret" in done.stderr


@pytest.mark.parametrize("case", ["nothing", "all", "all on a volume"])
def test_kustomize_renders_what_install_applies(
    case: str, tmp_path: Path, kubernetes_binaries: Path
) -> None:
    chosen = options.Options(**CASES[case])
    files, secrets = chart.kustomize(chosen, CERTIFICATES)
    for name, text in (files | {"secrets.yaml": secrets}).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [kubernetes_binaries / "kubectl", "kustomize", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert by_name(yaml.safe_load_all(done.stdout)) == installed(chosen)


def test_a_base_that_is_written_again_keeps_its_keys(tmp_path: Path) -> None:
    folder = tmp_path / "base"
    assert invoke("manifests", "kustomize", str(folder)).code == 0
    before = (folder / "secrets.yaml").read_text()
    assert (folder / "secrets.yaml").stat().st_mode & 0o077 == 0
    assert invoke("manifests", "kustomize", str(folder), "--image", "other:1").code == 0
    assert (folder / "secrets.yaml").read_text() == before
    assert "image: other:1" in (folder / "scheduler.yaml").read_text()


@pytest.fixture(scope="module")
def plane(kubernetes_binaries: Path) -> Iterator[ControlPlane]:
    with ControlPlane.start() as started:
        yield started


def test_helm_installs_upgrades_and_keeps_the_keys(plane: ControlPlane, folder: Path) -> None:
    where = ("--kubeconfig", str(plane.kubeconfig), "-n", "kube-system")
    helm("install", "windlass", str(folder), *where)
    path = f"/api/v1/namespaces/{names.SYSTEM}/secrets/{names.SERVER_TLS}"
    before = plane.rest.get(path).json["data"]
    helm("upgrade", "windlass", str(folder), *where, "--set", "image=registry.example/w:2")
    assert plane.rest.get(path).json["data"] == before
    service = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.platform.windlass.dev"
    bundle = base64.b64decode(plane.rest.get(service).json["spec"]["caBundle"])
    authority = f"/api/v1/namespaces/{names.SYSTEM}/secrets/{names.AUTHORITY}"
    assert base64.b64decode(plane.rest.get(authority).json["data"]["ca.crt"]) == bundle
    signed = verified(bundle, base64.b64decode(before["tls.crt"]))
    assert f"{names.SERVER}.{names.SYSTEM}.svc" in signed
    told = Cli(plane.kubeconfig).fails("status", "--json")  # no node runs its pods
    assert json.loads(told.out)["installed"]["image"] == "registry.example/w:2"


def verified(authority: bytes, certificate: bytes) -> list[str]:
    """The names in a certificate that the authority signed."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    ca, found = map(x509.load_pem_x509_certificate, (authority, certificate))
    key, algorithm = ca.public_key(), found.signature_hash_algorithm
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert algorithm is not None
    key.verify(found.signature, found.tbs_certificate_bytes, ec.ECDSA(algorithm))
    alternative = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return alternative.get_values_for_type(x509.DNSName)
