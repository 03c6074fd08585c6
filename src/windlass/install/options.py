"""The options of an installation, and how they are stored in the cluster."""

from __future__ import annotations

import dataclasses
import json
import re
import urllib.parse

from windlass.server.storage.bucket.bucket_url import BucketUrl
from windlass.version import VERSION

_IMAGE = f"windlass.dev/windlass:{VERSION}"
_SIZE = re.compile(r"[1-9][0-9]*(Mi|Gi|Ti)")

_MOST_REPLICAS = 9
_FOLDER = r"(/(?!\.\.?(/|,|$))[^/,\s]+)+"
_FOLDERS = re.compile(f"{_FOLDER}(,{_FOLDER})*")
_ACCOUNT = re.compile(r"[a-z0-9][-a-z0-9]*/[a-z0-9][-a-z0-9.]*|none")
_LEDGER = re.compile(r"secret:([a-z0-9][-a-z0-9.]*)/([-._a-zA-Z0-9]+)")


class OptionsError(ValueError):
    """An invalid option; the message names the flag and the remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    image: str = _IMAGE
    """The image of the components, and of Runs without one."""
    pull_secret: str = ""
    """Name of a Secret in windlass-system and windlass-nodes with which the image is pulled."""
    storage_class: str = ""
    """Storage class of the server's volume; "": the cluster's default."""
    storage_size: str = "20Gi"
    server_address: str = ""
    """URL of the server for pods; "": that of its Service."""
    api_address: str = ""
    """HOST:PORT of the API server for the components; "": that of its Service."""
    environments: str = ""
    """Where teams' Python environments are kept: `claim:NAME` in each namespace; "": nowhere."""
    host_mounts: str = ""
    """Folders of nodes, separated by commas, that Runs of users who may not create pods may mount;
    "": none."""
    ledger: str = ""
    """Where usage is written down: `secret:NAME/KEY` of windlass-system holds the address of a
    PostgreSQL database; "": a file on the server's volume."""
    storage: str = ""
    """Object storage in place of the server's volume: a `BucketUrl`; "": the volume."""
    storage_secret: str = ""
    """Secret of windlass-system with its keys."""
    replicas: str = "1"
    """Of the server."""
    previous: str = ""
    """The options before the latest change, as JSON, to return to them; not an option itself."""
    monitoring: str = ""
    """NAMESPACE/NAME of the ServiceAccount of Prometheus, which gets the right to scrape, and the
    objects of the Prometheus Operator and Grafana; "": none of them."""

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
        if self.host_mounts and not _FOLDERS.fullmatch(self.host_mounts):
            raise OptionsError(
                f"--host-mounts {self.host_mounts!r} must be absolute paths without .. or //, "
                "separated by commas"
            )
        if self.ledger and not _LEDGER.fullmatch(self.ledger):
            raise OptionsError(
                "--ledger must be secret:NAME/KEY, a Secret in windlass-system that holds "
                "postgresql://USER:PASSWORD@HOST/NAME; the address itself stays out of here"
            )
        if self.monitoring and not _ACCOUNT.fullmatch(self.monitoring):
            raise OptionsError(
                f"--monitoring {self.monitoring!r} is not NAMESPACE/NAME of the ServiceAccount of "
                "Prometheus, such as monitoring/prometheus-k8s, nor none"
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
                BucketUrl.parse(self.storage)
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
                "--storage-secret (a bucket): servers with volumes would each have files of "
                "their own"
            )

    def scraper(self) -> tuple[str, str] | None:
        """Namespace and name of the ServiceAccount of Prometheus."""
        namespace, slash, name = self.monitoring.partition("/")
        return (namespace, name) if slash else None

    def ledger_key(self) -> tuple[str, str] | None:
        """Name and key of the Secret with the address of the ledger's database."""
        found = _LEDGER.fullmatch(self.ledger)
        return (found[1], found[2]) if found else None

    def server_names(self, service: str, namespace: str) -> list[str]:
        """Names that the server's certificate must have."""
        names = [service, f"{service}.{namespace}", f"{service}.{namespace}.svc",
                 f"{service}.{namespace}.svc.cluster.local"]  # fmt: skip
        host = urllib.parse.urlsplit(self.server_address).hostname
        return [*names, host] if host else names

    def after(self, before: dict[str, str], *, worked: bool) -> Options:
        """These options, as successors of the stored ones `before`. `worked`: they are worth
        returning to; otherwise those before them stay the ones to return to."""
        changed = any(before.get(key, "") != value for key, value in self.data().items())
        if not before or not changed or not worked:
            return self
        kept = {key: value for key, value in before.items() if key != "previous"}
        return dataclasses.replace(self, previous=json.dumps(kept, sort_keys=True))

    @staticmethod
    def of_before(data: dict[str, str]) -> Options:
        """The options to return to; OptionsError if there are none, or of another version."""
        if not data.get("previous"):
            raise OptionsError("there is nothing to return to: no upgrade changed an option")
        kept: dict[str, str] = json.loads(data["previous"])
        if kept.get("version") != VERSION:
            raise OptionsError(
                f"the installation before was of version {kept.get('version')}; this command is "
                f"of {VERSION}. Run windlass upgrade of that version"
            )
        return Options.read(kept)

    def data(self) -> dict[str, str]:
        """The data of the ConfigMap, from which `read` restores the options."""
        chosen = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {"version": VERSION, **chosen}

    @staticmethod
    def check_upgrade(data: dict[str, str], **changes: str | None) -> None:
        """Raises OptionsError if the image would stay that of another version."""
        image = data.get("image", "")
        if "@" in image and data.get("version") != VERSION and not changes.get("image"):
            raise OptionsError(
                f"--image: the installation has an image by digest, {image}, of version "
                f"{data.get('version', 'unknown')}; give the digest of version {VERSION}"
            )

    @staticmethod
    def read(data: dict[str, str], **changes: str | None) -> Options:
        """The stored options with changes. If the image is of another version, its repository is
        kept and the tag becomes this version. A digest stays: the digest of this version
        is unknown here."""
        known = {field.name for field in dataclasses.fields(Options)}
        kept = {key: value for key, value in data.items() if key in known and value}
        if data.get("version") != VERSION and "@" not in kept.get("image", "@"):
            folder, slash, last = kept["image"].rpartition("/")
            kept["image"] = f"{folder}{slash}{last.partition(':')[0]}:{VERSION}"
        return Options(**(kept | {key: value for key, value in changes.items() if value}))
