"""Events: what controllers tell people about an object, shown by `kubectl describe`.

Best effort: an event that cannot be written never stops the work it tells about.
"""

from __future__ import annotations

import hashlib
import logging

from windlass.kinds import kubernetes, meta, times
from windlass.store import client, errors

log = logging.getLogger(__name__)

NORMAL, WARNING = "Normal", "Warning"


def reference(about: meta.Object) -> kubernetes.ObjectReference:
    resource = about.resource
    return kubernetes.ObjectReference(
        resource.api_version, resource.kind, about.namespace, about.name, about.uid
    )


async def tell(
    store: client.Store, about: meta.Object, kind: str, reason: str, message: str, component: str
) -> None:
    """Writes one event. The same words about the same object are written once: the name of the
    event is made from them, so telling again after a crash changes nothing."""
    await tell_of(store, reference(about), kind, reason, message, component)


async def tell_of(
    store: client.Store, about: kubernetes.ObjectReference,
    kind: str, reason: str, message: str, component: str,
) -> None:  # fmt: skip
    """As `tell`, about an object of any kind."""
    words = f"{about.uid}/{kind}/{reason}/{message}/{component}".encode()
    now = times.seconds(times.now())
    event = kubernetes.Event(
        metadata=meta.ObjectMeta(
            name=f"{about.name[:200]}.{hashlib.sha256(words).hexdigest()[:16]}",
            namespace=about.namespace or "default",
        ),
        involved_object=about,
        type=kind,
        reason=reason,
        message=message,
        source=kubernetes.EventSource(component=component),
        count=1,
        first_timestamp=now,
        last_timestamp=now,
        reporting_component=component,
    )
    try:
        await store.create(event)
    except errors.AlreadyExists:
        return
    except errors.ApiError as error:
        log.debug("event about %s not written: %s", about.name, error)
