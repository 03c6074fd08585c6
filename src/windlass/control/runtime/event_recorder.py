"""Events: messages of controllers about an object, shown by `kubectl describe`.

Best effort: an event that cannot be written never stops the work that it reports.
"""

from __future__ import annotations

import hashlib
import logging

from windlass.kinds.types import core, meta
from windlass.kinds.values import times
from windlass.store import errors, interface

log = logging.getLogger(__name__)

NORMAL, WARNING = "Normal", "Warning"


def reference(about: meta.Object) -> core.ObjectReference:
    resource = about.resource
    return core.ObjectReference(
        resource.api_version, resource.kind, about.namespace, about.name, about.uid
    )


async def record(
    store: interface.Store, about: meta.Object, kind: str, reason: str, message: str, component: str
) -> None:
    """Writes one event. The same message about the same object is written once: the name of the
    event is derived from it, so a repetition after a crash changes nothing."""
    await record_for(store, reference(about), kind, reason, message, component)


async def record_for(
    store: interface.Store, about: core.ObjectReference,
    kind: str, reason: str, message: str, component: str, *, at: str = "",
) -> None:  # fmt: skip
    """As `record`, about an object of any kind. `at`: when it happened, if not now."""
    identity = f"{about.uid}/{kind}/{reason}/{message}/{component}".encode()
    moment = at or times.seconds(times.now())
    event = core.Event(
        metadata=meta.ObjectMeta(
            name=f"{about.name[:200]}.{hashlib.sha256(identity).hexdigest()[:16]}",
            namespace=about.namespace or "default",
        ),
        involved_object=about,
        type=kind,
        reason=reason,
        message=message,
        source=core.EventSource(component=component),
        count=1,
        first_timestamp=moment,
        last_timestamp=moment,
        reporting_component=component,
    )
    try:
        await store.create(event)
    except errors.AlreadyExists:
        return
    except errors.ApiError as error:
        log.debug("event about %s not written: %s", about.name, error)
