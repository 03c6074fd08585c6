"""All objects of an installation, in the order of their application. Pure.

They are grouped into parts, whose progress the user sees. They depend only on the options and the
certificates: the same input gives the same objects.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterator

from windlass.control import wiring
from windlass.control.model import capabilities
from windlass.install import names
from windlass.install.manifests import monitoring, policies, rbac, workloads
from windlass.install.names import Object
from windlass.install.options import Options
from windlass.kinds import registry, schema_export
from windlass.ledger import service


@dataclasses.dataclass(frozen=True, slots=True)
class Certificates:
    """PEM texts."""

    authority: str
    authority_key: str
    bundle: str
    """The authorities that clients trust: the current one and, until the next upgrade, the one
    before."""
    certificate: str
    key: str
    metrics_certificate: str
    """Of the scheduler and the controllers, for /metrics: they must not have the server's key."""
    metrics_key: str


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    name: str
    objects: tuple[Object, ...]


def parts(options: Options, certificates: Certificates) -> list[Part]:
    listed: dict[str, Iterator[Object]] = {
        "kinds": (schema_export.crd(kind) for kind in registry.OWN),
        "namespaces": policies.namespaces(),
        "rights": rbac.objects(),
        "policies": _policies(options),
        "settings": _settings(options, certificates),
        "scheduler": workloads.control(options, names.SCHEDULER, certificates.metrics_certificate),
        "controllers": workloads.control(
            options, names.CONTROLLERS, certificates.metrics_certificate
        ),
        "server": _server(options, certificates),
        "agents": workloads.agents(options),
        "queue": iter([_queue()]),
        "monitoring": monitoring.objects(options),
    }
    return [Part(name, tuple(objects)) for name, objects in listed.items()]


UNMADE = Certificates(*["(made by windlass install)\n"] * 7)
"""A placeholder where no certificates are needed: to print objects and to remove them."""


def for_removal(listed: list[Part]) -> tuple[list[Object], list[Object]]:
    """The objects to remove, in order, and those that stay with the data of users: the objects and
    what protects them, which are the roles of users and the admission policies with the ConfigMap
    that these read. The APIService is first: while it exists and its server does not answer, no
    namespace can be deleted."""
    read = ("ConfigMap", capabilities.NAME)
    protecting = {_key(obj) for obj in (*rbac.user_roles(), *policies.admission())} | {read}
    everything = [obj for part in reversed(listed) for obj in reversed(part.objects)]
    holding = ("CustomResourceDefinition", "Namespace", "Queue")
    claim: Object = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": names.CLAIM, "namespace": names.SYSTEM},
    }  # fmt: skip
    own: list[Object] = []
    kept: list[Object] = []
    for obj in everything:
        stays = obj["kind"] in holding or _key(obj) in protecting
        (kept if stays else own).append(obj)
    own.sort(key=lambda obj: obj["kind"] != "APIService")
    kept.sort(key=lambda obj: _key(obj) == read)  # a policy without it refuses every change
    return own, [claim, *kept]


def _key(obj: Object) -> tuple[str, str]:
    """Kind and name: unique among the cluster-scoped objects of an installation."""
    return obj["kind"], obj["metadata"]["name"]


def as_yaml(objects: list[Object]) -> str:
    import yaml

    class Plain(yaml.SafeDumper):
        """Without anchors, for readability."""

        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
            return True

    return yaml.dump_all(objects, Dumper=Plain, sort_keys=False, width=100, explicit_start=True)


def _policies(options: Options) -> Iterator[Object]:
    yield from policies.priorities()
    yield from policies.connections(options.scraper())
    yield from policies.agents()
    yield from policies.admission()


def _settings(options: Options, certificates: Certificates) -> Iterator[Object]:
    """The capabilities, the options, the leader election leases and the server's certificate."""
    facts = capabilities.Engine(
        image=options.image,
        server=options.server_address or f"https://{names.SERVER}.{names.SYSTEM}.svc",
        authority=certificates.bundle,
        python=workloads.PYTHON,
        ledger=True,
        environments=options.environments,
    )
    yield _config(capabilities.NAME, facts.data() | {policies.HOST_MOUNTS: options.host_mounts})
    yield _config(names.INSTALLATION, options.data())
    for lease in (*(each.lease for each in wiring.ALL), service.LEASE):
        # Created here so that no component needs permission to create leases.
        yield {
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": names.metadata(lease, "settings", names.SYSTEM),
        }  # fmt: skip
    authority = {"ca.crt": certificates.authority, "ca.key": certificates.authority_key}
    yield _secret(names.AUTHORITY, "Opaque", authority | {"bundle.crt": certificates.bundle})
    served = {"tls.crt": certificates.certificate, "tls.key": certificates.key}
    yield _secret(names.SERVER_TLS, "kubernetes.io/tls", served)
    measured = {"tls.crt": certificates.metrics_certificate, "tls.key": certificates.metrics_key}
    yield _secret(names.METRICS_TLS, "kubernetes.io/tls", measured)


def _server(options: Options, certificates: Certificates) -> Iterator[Object]:
    yield from workloads.server(options, certificates.certificate)
    yield policies.api_service(_encoded(certificates.bundle))


def _queue() -> Object:
    """The default queue, for Runs that name none. Its spec belongs to the administrators."""
    return {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Queue",
        "metadata": names.metadata("default", "queue"), "spec": {},
    }  # fmt: skip


def _config(name: str, data: dict[str, str]) -> Object:
    return {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": names.metadata(name, "settings", names.SYSTEM), "data": data,
    }  # fmt: skip


def _secret(name: str, kind: str, texts: dict[str, str]) -> Object:
    return {
        "apiVersion": "v1", "kind": "Secret", "type": kind,
        "metadata": names.metadata(name, "settings", names.SYSTEM),
        "data": {key: _encoded(text) for key, text in texts.items()},
    }  # fmt: skip


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
