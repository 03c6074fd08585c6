"""Credentials of requests: tokens and certificates, renewed when they rotate.

A transport gets the `current` credential before each request and calls `renew` after a 401. Tokens
and certificates in files, such as those of a pod's service account, are read again each minute;
credential plug-ins run again when their credential has expired.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Protocol

from windlass.store import errors
from windlass.store.kubernetes.config import model as accesses
from windlass.store.kubernetes.config.model import Access, KubeconfigError

log = logging.getLogger(__name__)

READ_AGAIN_AFTER = 60.0
"""Seconds. Kubernetes renews a pod's token long before it expires; a minute is early enough."""


@dataclasses.dataclass(frozen=True, slots=True)
class Credential:
    authorization: str = ""
    """Value of the Authorization header; "" for none."""
    certificate: tuple[bytes, bytes] | None = None
    """PEM chain and PEM key of the client certificate; None for none."""


class Credentials(Protocol):
    """A source of credentials."""

    async def current(self) -> Credential: ...

    async def renew(self, refused: Credential) -> bool:
        """Called after a 401 for `refused`; returns whether a retry may succeed."""
        ...


class ConfiguredCredentials:
    """Token, password or certificate from a kubeconfig or a pod's service account."""

    def __init__(self, access: Access, clock: Callable[[], float] = time.monotonic) -> None:
        self._access = access
        self._clock = clock
        self._loaded: Credential | None = None
        self._loaded_at = 0.0
        user = access.user
        self._from_files = bool(user.token_file or user.client_certificate or user.client_key)

    async def current(self) -> Credential:
        stale = self._from_files and self._clock() - self._loaded_at >= READ_AGAIN_AFTER
        if self._loaded is None or stale:
            return self._load()
        return self._loaded

    async def renew(self, refused: Credential) -> bool:
        if self._from_files and self._loaded == refused:
            self._load()
        return self._loaded != refused

    def _load(self) -> Credential:
        self._loaded_at = self._clock()
        try:
            self._loaded = Credential(
                accesses.authorization(self._access), accesses.certificate(self._access)
            )
        except KubeconfigError as error:
            if self._loaded is None:
                raise errors.Unauthorized(error.message) from None
            log.warning("using the credentials that were read before: %s", error.message)
        return self._loaded
