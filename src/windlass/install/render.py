"""Everything that is installed, as objects, in the order in which it is applied. Pure.

`parts` are what people are told about; what they hold depends on the options and on the
certificates alone, so that the same options give the same objects.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterator

from windlass.control import engine, sets
from windlass.install import names, policies, rights, workloads
from windlass.install.names import Object
from windlass.install.options import Options
from windlass.kinds import registry, schema
from windlass.ledger import service


@dataclasses.dataclass(frozen=True, slots=True)
class Certificates:
    """PEM texts."""

    authority: str
    authority_key: str
    bundle: str
    """What clients trust: the authority, and the one before it until the next upgrade."""
    certificate: str
    key: str


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    name: str
    objects: tuple[Object, ...]


def parts(options: Options, certificates: Certificates) -> list[Part]:
    listed: dict[str, Iterator[Object]] = {
        "kinds": (schema.crd(kind) for kind in registry.OWN),
        "namespaces": policies.namespaces(),
        "rights": rights.objects(),
        "policies": _policies(),
        "settings": _settings(options, certificates),
        "scheduler": workloads.control(options, names.SCHEDULER),
        "controllers": workloads.control(options, names.CONTROLLERS),
        "server": _server(options, certificates),
        "agents": workloads.agents(options),
        "queue": iter([_queue()]),
    }
    return [Part(name, tuple(objects)) for name, objects in listed.items()]


UNMADE = Certificates(*["(made by windlass install)\n"] * 5)
"""In the place of certificates where none is needed: to show, and to remove."""


def for_removal(listed: list[Part]) -> tuple[list[Object], list[Object]]:
    """Our own objects, those that others depend on last; and what holds users' data. The API
    service goes first: while it is there and answers nothing, no namespace can be deleted."""
    everything = [obj for part in reversed(listed) for obj in reversed(part.objects)]
    holding = ("CustomResourceDefinition", "Namespace", "Queue")
    kept = [obj for obj in everything if obj["kind"] in holding]
    claim: Object = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"state-{names.SERVER}-0", "namespace": names.SYSTEM},
    }  # fmt: skip
    ours = [obj for obj in everything if obj["kind"] not in holding]
    ours.sort(key=lambda obj: obj["kind"] != "APIService")
    return ours, [claim, *kept]


def as_yaml(objects: list[Object]) -> str:
    import yaml

    class Plain(yaml.SafeDumper):
        """Without anchors: people read it."""

        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
            return True

    return yaml.dump_all(objects, Dumper=Plain, sort_keys=False, width=100, explicit_start=True)


def _policies() -> Iterator[Object]:
    yield from policies.priorities()
    yield from policies.admission()


def _settings(options: Options, certificates: Certificates) -> Iterator[Object]:
    """What the engine can do, what was chosen, who leads, and the server's certificate."""
    facts = engine.Engine(
        image=options.image,
        server=options.server_address or f"https://{names.SERVER}.{names.SYSTEM}.svc",
        authority=certificates.bundle,
        python=workloads.PYTHON,
        ledger=True,
        environments=options.environments,
    )
    yield _config(engine.NAME, facts.data())
    yield _config(names.INSTALLATION, options.data())
    for lease in (*(each.lease for each in sets.ALL), service.LEASE):
        # Made here so that nobody needs the right to make leases; who leads writes the rest.
        yield {
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": names.metadata(lease, "settings", names.SYSTEM),
        }  # fmt: skip
    authority = {"ca.crt": certificates.authority, "ca.key": certificates.authority_key}
    yield _secret(names.AUTHORITY, "Opaque", authority | {"bundle.crt": certificates.bundle})
    served = {"tls.crt": certificates.certificate, "tls.key": certificates.key}
    yield _secret(names.SERVER_TLS, "kubernetes.io/tls", served)


def _server(options: Options, certificates: Certificates) -> Iterator[Object]:
    yield from workloads.server(options, certificates.certificate)
    yield policies.api_service(_encoded(certificates.bundle))


def _queue() -> Object:
    """The one that runs without another wait in. Only its name is ours: the rest is the team's."""
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
