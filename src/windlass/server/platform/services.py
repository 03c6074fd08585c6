"""The handlers of the platform API, as the route table names them."""

from __future__ import annotations

import dataclasses

from windlass.server.platform.handlers.blobs import BlobService
from windlass.server.platform.handlers.external_pods import ExternalPodService
from windlass.server.platform.handlers.logs import LogService
from windlass.server.platform.handlers.mailboxes import MailboxService
from windlass.server.platform.handlers.metrics import MetricsService
from windlass.server.platform.handlers.metrics_pull import PullSource
from windlass.server.platform.handlers.outputs import OutputService
from windlass.server.platform.handlers.pod_files import PodFileService
from windlass.server.platform.handlers.queues import QueueService
from windlass.server.platform.handlers.rendezvous import RendezvousService
from windlass.server.platform.handlers.runs import RunService
from windlass.server.platform.handlers.steps import StepService
from windlass.server.platform.handlers.studies import StudyService
from windlass.server.platform.handlers.tokens import TokenService
from windlass.server.platform.handlers.usage_reports import UsageService


@dataclasses.dataclass(slots=True)
class EmbeddedServices:
    """What only the embedded engine serves; on a cluster Kubernetes does."""

    tokens: TokenService
    agents: PullSource
    files: PodFileService


@dataclasses.dataclass(slots=True)
class Services:
    runs: RunService
    external_pods: ExternalPodService
    queues: QueueService
    usage: UsageService
    logs: LogService
    rendezvous: RendezvousService
    blobs: BlobService
    outputs: OutputService
    mailboxes: MailboxService
    steps: StepService
    studies: StudyService
    metrics: MetricsService
    embedded: EmbeddedServices | None = None
