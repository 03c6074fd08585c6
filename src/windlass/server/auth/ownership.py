"""Whose the Runs of a CronRun are, and what keeps a Run until its usage is recorded.

A user that changes what a CronRun starts, or when, becomes its user. The finalizer of the ledger is
removed by the platform, not by members. The embedded server (`server.apiserver.admission`) and
admission policies on Kubernetes (`install.manifests.policies`) have the rules from here. Pure.
"""

from __future__ import annotations

import msgspec

from windlass.kinds.types import cronrun, run
from windlass.server.auth.identity import Attributes

_HARMLESS = ("suspend", "successfulHistoryLimit", "failedHistoryLimit")
"""What every member may change in another's CronRun: pause, continue, and what is kept."""
OF_THE_USER = tuple(
    name
    for field in msgspec.structs.fields(cronrun.CronRunSpec)
    if (name := field.encode_name) not in _HARMLESS
)
"""Fields of a CronRun's spec that say what it starts and when."""
KEPT_FOR_LEDGER = (
    f"the finalizer {run.FINALIZER_LEDGER} keeps the run until its usage is recorded, and the "
    "platform removes it; leave metadata.finalizers as it is"
)


def removing_finalizers(namespace: str, name: str) -> Attributes:
    """The right to remove the finalizer of the ledger: that of the platform's own accounts and of
    administrators of the whole installation."""
    resource = run.Run.resource
    return Attributes("update", resource.group, resource.plural, "finalizers", namespace, name)
