"""What whoever installs may choose, and how it is remembered in the cluster."""

from __future__ import annotations

import dataclasses
import re
import urllib.parse

import windlass
from windlass.server.s3address import Address

_IMAGE = f"windlass.dev/windlass:{windlass.__version__}"
_SIZE = re.compile(r"[1-9][0-9]*(Mi|Gi|Ti)")

_MOST_REPLICAS = 9
_LEDGER = re.compile(r"secret:([a-z0-9][-a-z0-9.]*)/([-._a-zA-Z0-9]+)")


class OptionsError(ValueError):
    """An option that cannot be; the message names the flag and the remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    image: str = _IMAGE
    """Of our own parts, and of Runs that name none."""
    pull_secret: str = ""
    """Name of a Secret in windlass-system and windlass-nodes with which the image is pulled."""
    storage_class: str = ""
    """Of the server's volume; "": the cluster's default."""
    storage_size: str = "20Gi"
    server_address: str = ""
    """URL under which pods reach the server; "": by its Service."""
    api_address: str = ""
    """HOST:PORT under which our pods reach the API server; "": by its Service."""
    environments: str = ""
    """Where teams' Python environments are kept: `claim:NAME` in each namespace; "": nowhere."""

    ledger: str = ""
    """Where usage is written down: `secret:NAME/KEY` of windlass-system holds the address of a
    PostgreSQL database; "": a file on the server's volume."""
    storage: str = ""
    """S3-compatible storage in the place of the server's volume: `s3address`; "": the volume."""
    storage_secret: str = ""
    """Secret of windlass-system with its keys."""
    replicas: str = "1"
    """Of the server."""

    def __post_init__(self) -> None:
        if not self.image or any(c.isspace() for c in self.image):
            raise OptionsError(f"--image {self.image!r} is not the name of an image")
        if not _SIZE.fullmatch(self.storage_size):
            raise OptionsError(f"--storage-size {self.storage_size!r} is not a size such as 20Gi")
        if self.server_address and not self.server_address.startswith("https://"):
            raise OptionsError(f"--server-address {self.server_address!r} must begin with https://")
        if self.environments and not self.environments.startswith(("claim:", "/")):
            raise OptionsError(
                f"--environments {self.environments!r} is neither claim:NAME nor a path of nodes"
            )
        if self.ledger and not _LEDGER.fullmatch(self.ledger):
            raise OptionsError(
                "--ledger must be secret:NAME/KEY, a Secret in windlass-system that holds "
                "postgresql://USER:PASSWORD@HOST/NAME; the address itself stays out of here"
            )
        self._check_storage()
        _, colon, port = self.api_address.rpartition(":")
        if self.api_address and not (colon and port.isdecimal()):
            raise OptionsError(f"--api-address {self.api_address!r} is not HOST:PORT")

    def _check_storage(self) -> None:
        if not (self.replicas.isdecimal() and 1 <= int(self.replicas) <= _MOST_REPLICAS):
            raise OptionsError(f"--replicas {self.replicas!r} is not a number from 1 to 9")
        if bool(self.storage) != bool(self.storage_secret):
            raise OptionsError(
                "--storage and --storage-secret belong together: where the storage is, and the "
                "Secret in windlass-system that holds its access-key and secret-key"
            )
        if self.storage:
            try:
                Address.parse(self.storage)
            except ValueError as problem:
                raise OptionsError(f"--storage: {problem}") from None
        if self.storage and not self.ledger:
            raise OptionsError(
                "--storage needs --ledger secret:NAME/KEY, too: servers that keep nothing of their "
                "own keep usage and mailboxes in PostgreSQL"
            )
        if int(self.replicas) > 1 and not self.storage:
            raise OptionsError(
                f"--replicas {self.replicas} needs --ledger (PostgreSQL) and --storage with "
                "--storage-secret (S3-compatible): servers with volumes would each have files of "
                "their own"
            )

    def ledger_key(self) -> tuple[str, str] | None:
        """Name and key of the Secret that says where the ledger is."""
        found = _LEDGER.fullmatch(self.ledger)
        return (found[1], found[2]) if found else None

    def server_names(self, service: str, namespace: str) -> list[str]:
        """Names that the server's certificate must carry."""
        names = [service, f"{service}.{namespace}", f"{service}.{namespace}.svc",
                 f"{service}.{namespace}.svc.cluster.local"]  # fmt: skip
        host = urllib.parse.urlsplit(self.server_address).hostname
        return [*names, host] if host else names

    def data(self) -> dict[str, str]:
        """As a ConfigMap keeps them; `read` reads them back."""
        chosen = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"version": windlass.__version__, **chosen}

    @staticmethod
    def read(data: dict[str, str], **changes: str | None) -> Options:
        """What was chosen before, with what is chosen now. Of the image of another version only
        the place is kept: the next one is sought there, too."""
        known = {field.name for field in dataclasses.fields(Options)}
        kept = {key: value for key, value in data.items() if key in known and value}
        if "image" in kept and data.get("version") != windlass.__version__:
            place = kept["image"].partition("@")[0]
            name, colon, _ = place.rpartition(":")
            kept["image"] = f"{name if colon and name else place}:{windlass.__version__}"
        return Options(**(kept | {key: value for key, value in changes.items() if value}))
