"""What the engine can do, as data: the ConfigMap `engine` in `windlass-system`, as one value.

The embedded server writes it at start, an installation on Kubernetes has it in its manifests.
Code that renders pods gets this value; no code asks for the name of an engine. Pure.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, cast, get_args

from windlass.kinds.types import core

NAMESPACE, NAME = "windlass-system", "engine"
Addresses = Literal["node", "pod"]
Isolation = Literal["process", "user", "container"]


class EngineError(ValueError):
    """A value of the ConfigMap is invalid; the message names the key and the remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class Engine:
    """The keys of the ConfigMap. The defaults are those of Kubernetes."""

    images: bool = True
    """Pods run images; else on the node's own files, and an image is refused."""
    image: str = ""
    """The platform's image: what prepares pods, and what Runs that name no image run in."""
    addresses: Addresses = "pod"
    """`node`: members of one node share its address and its ports; `pod`: each has its own."""
    ports: tuple[int, int] = (20000, 29999)
    """Where ports of runs are taken from: first and last. With `addresses: pod` every member has
    the first ones."""
    server: str = ""
    """How a pod reaches the server; "" when it cannot."""
    isolation: Isolation = "container"
    """How far teams' pods are kept apart: `process`, not at all; `user`, by user id."""
    claims: bool = True
    """Persistent volume claims can be mounted."""
    admission: bool = True
    """Rules of namespaces may refuse pods: quotas, limit ranges, Pod Security, policies."""
    heartbeats: bool = False
    """Windlass itself marks a silent node: no other controller watches the leases of nodes."""
    other_schedulers: bool = True
    """Other schedulers and kubelets run here, and report on the pods that are theirs."""
    authority: str = ""
    """The authority (PEM) that signed the certificate of `server`; "": a public one."""
    python: str = "python3"
    """The Python inside pods that has this package: what `prepare` and the companion run with."""
    environments: str = ""
    """Where a namespace finds the environments it has built: a path of the node (`{namespace}` is
    the namespace), or `claim:NAME`, a claim of that name in each namespace, which all nodes must be
    able to write to at once. "": none is kept, and each pod builds its own."""
    ledger: bool = False
    """A ledger records the usage of Runs: they are kept until it has."""

    @property
    def kept_claim(self) -> str:
        """Name of the claim in which each namespace keeps its environments; "" if in none."""
        kind, _, name = self.environments.partition(":")
        return name if self.images and kind == "claim" else ""

    @staticmethod
    def read(found: core.ConfigMap | None) -> Engine:
        """Keys that are absent have their defaults; keys that are not known here are left alone."""
        data = (found.data if found else None) or {}
        usual = Engine()
        return Engine(
            images=_flag(data, "images", usual.images),
            image=data.get("image", usual.image).strip(),
            addresses=cast("Addresses", _choice(data, "addresses", Addresses, usual.addresses)),
            ports=_ports(data, usual.ports),
            server=data.get("server", usual.server).strip().rstrip("/"),
            isolation=cast("Isolation", _choice(data, "isolation", Isolation, usual.isolation)),
            claims=_flag(data, "claims", usual.claims),
            admission=_flag(data, "admission", usual.admission),
            heartbeats=_flag(data, "heartbeats", usual.heartbeats),
            other_schedulers=_flag(data, "otherSchedulers", usual.other_schedulers),
            authority=data.get("authority", usual.authority),
            python=data.get("python", usual.python),
            environments=data.get("environments", usual.environments),
            ledger=_flag(data, "ledger", usual.ledger),
        )

    def data(self) -> dict[str, str]:
        """The ConfigMap's data: what `read` reads back as the same value."""
        return {
            "images": _word(self.images),
            "image": self.image,
            "addresses": self.addresses,
            "ports": f"{self.ports[0]}-{self.ports[1]}",
            "server": self.server,
            "isolation": self.isolation,
            "claims": _word(self.claims),
            "admission": _word(self.admission),
            "heartbeats": _word(self.heartbeats),
            "otherSchedulers": _word(self.other_schedulers),
            "authority": self.authority,
            "python": self.python,
            "environments": self.environments,
            "ledger": _word(self.ledger),
        }


def _word(flag: bool) -> str:
    return "true" if flag else "false"


def _flag(data: dict[str, str], key: str, usual: bool) -> bool:
    text = data.get(key, _word(usual)).strip()
    if text not in ("true", "false"):
        raise _wrong(key, text, "true or false")
    return text == "true"


def _choice(data: dict[str, str], key: str, choices: object, usual: str) -> str:
    text = data.get(key, usual).strip()
    if text not in get_args(choices):
        raise _wrong(key, text, f"one of {', '.join(get_args(choices))}")
    return text


def _ports(data: dict[str, str], usual: tuple[int, int]) -> tuple[int, int]:
    text = data.get("ports", "").strip()
    if not text:
        return usual
    low, _, high = text.partition("-")
    if not (low.isdecimal() and high.isdecimal() and 1024 <= int(low) <= int(high) <= 65535):
        raise _wrong("ports", text, "two numbers from 1024 to 65535 such as 20000-29999")
    return int(low), int(high)


def _wrong(key: str, text: str, want: str) -> EngineError:
    return EngineError(
        f"ConfigMap {NAME} in {NAMESPACE}: {key} is {text!r}; it must be {want}. Correct it with "
        f"kubectl edit configmap {NAME} -n {NAMESPACE}"
    )
