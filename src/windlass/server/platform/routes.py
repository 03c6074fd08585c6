"""The route table of the platform API: the one definition of routes and their access rules.

The router dispatches and authorises by it, the OpenAPI document is generated from it, and the
tenancy tests try each route as every caller that it is not for. A path that is not here is not
served.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from windlass.kinds.types.queue import Queue
from windlass.kinds.types.run import Run
from windlass.server.platform import parameters
from windlass.server.platform.access import (
    AccessRule,
    AnyUser,
    Audience,
    BlobPermission,
    MailboxToken,
    OwnRunPermission,
    OwnTokens,
    PathPermission,
    Permission,
    TeamRunPermission,
    TokenPermission,
)
from windlass.server.platform.call import Handler
from windlass.server.platform.parameters import Parameter
from windlass.server.platform.paths import GROUP, ROOT
from windlass.server.platform.services import EmbeddedServices, Services

_NAMESPACE = f"{ROOT}/namespaces/{{namespace}}"
_RUN = f"{_NAMESPACE}/runs/{{run}}"
_STUDY = f"{_NAMESPACE}/studies/{{study}}"
_BOX = f"{_NAMESPACE}/mailboxes/{{box}}"
_METRICS = "/apis/metrics.k8s.io/v1beta1"
_NODE_PROXY = "/api/v1/nodes/{node}/proxy"
_READ = ("GET", "HEAD")

PATTERNS = {
    "namespace": r"[a-z0-9][-a-z0-9.]*",
    "digest": r"sha256:[0-9a-f]{64}",
    "box": r"[0-9a-f]{24}",
    "key": r"[a-z0-9-]{1,40}",
    "token": r"[A-Za-z0-9]+",
    "stepkey": r"[0-9a-f]{64}",
    "study": r"[a-z0-9][-a-z0-9]{0,39}",
}
"""Values of path parameters; of all others any text. Some become names of files: nothing else may
pass here."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """A success that the OpenAPI document describes."""

    kind: str = ""
    """The `kind` of the answer; "" for other JSON objects."""
    code: int = 200
    media: tuple[str, ...] = ("application/json",)
    """Empty: there is no body."""


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    template: str
    methods: tuple[str, ...]
    access: AccessRule
    handler: Callable[[Services], Handler]
    summary: str
    resource: str = ""
    """How metrics and the audit log name it; "": by its path alone."""
    verb: str = "get"
    parameters: tuple[Parameter, ...] = ()
    reply: Reply = Reply()
    body: str = ""
    """The media type of the request's body; "": it has none."""
    embedded: bool = False
    """Served by the embedded engine only."""
    waits: bool = False
    """It waits for something or moves much data: it has no seat, and counts as a stream."""

    @property
    def audience(self) -> Audience:
        return self.access.audience


def _embedded(choose: Callable[[EmbeddedServices], Handler]) -> Callable[[Services], Handler]:
    def handler(services: Services) -> Handler:
        if services.embedded is None:
            raise LookupError("this engine does not serve the route")
        return choose(services.embedded)

    return handler


def _runs(verb: str, name: str = "", audience: Audience = "team") -> Permission:
    resource = Run.resource
    return Permission(verb, resource.group, resource.plural, "", name, audience)


_LIST_OWN_RUNS = AnyUser(
    "list", Run.resource.group, Run.resource.plural,
    audience="everyone", reason="only runs that the caller may list are in it",
)  # fmt: skip
_CREATE_RUNS = _runs("create")
_CODE = BlobPermission("create", Run.resource.group, Run.resource.plural)
_GET_RUN = OwnRunPermission("get", Run.resource.group, Run.resource.plural, "", "run")
_OUTPUTS = OwnRunPermission("create", Run.resource.group, Run.resource.plural, "", "run")
_READ_OUTPUTS = TeamRunPermission("create", Run.resource.group, Run.resource.plural, "", "run")
_READ_LOGS = Permission("get", "", "pods", "log")
# A permission of its own, which only agents have: users who may use the platform API must not
# write what pods of others logged, or what nodes measured.
_WRITE_LOGS = Permission("create", Run.resource.group, "runs", "logs", "run", "platform")
_WRITE_METRICS = Permission(
    "create", Run.resource.group, "nodes", "metrics", "node", audience="platform"
)
_LIST_QUEUES = Permission(
    "list", Queue.resource.group, Queue.resource.plural,
    audience="everyone", reason="amounts are public; names of runs are filtered",
)  # fmt: skip
_UPDATE_QUEUES = Permission(
    "update", Queue.resource.group, Queue.resource.plural, audience="platform"
)
_PUBLIC_NODES = "nodes are public, and how full they are"
_LIST_NODES = Permission("list", "", "nodes", audience="everyone", reason=_PUBLIC_NODES)
_GET_NODE = Permission("get", "", "nodes", "", "node", "everyone", _PUBLIC_NODES)
_LIST_ALL_PODS = Permission("list", "", "pods", audience="platform")
_LIST_PODS = Permission("list", "", "pods")
_EXEC = Permission("create", "", "pods", "exec")
_GET_POD = Permission("get", "", "pods", "", "pod")

_CREATE_TOKENS = TokenPermission("create", GROUP, "tokens", audience="platform")

_BYTES = "application/octet-stream"
_CONTENT = Reply(media=(_BYTES,))
_EMPTY = Reply(code=204, media=())
_PAGES = ("application/json", "text/csv", "text/html")

_RUN_ROUTES = (
    Route(
        f"{ROOT}/ps", ("GET",), _LIST_OWN_RUNS, lambda s: s.runs.ps,
        "Runs of all teams whose runs the caller may list.", "ps", parameters=parameters.PS,
        reply=Reply("RunPage"),
    ),
    Route(
        f"{_NAMESPACE}/ps", ("GET",), _runs("list"), lambda s: s.runs.ps,
        "Runs of a team.", "ps", parameters=parameters.PS, reply=Reply("RunPage"),
    ),
    Route(
        f"{_NAMESPACE}/plan", ("POST",), _CREATE_RUNS, lambda s: s.runs.plan,
        "When a Run would start.", "plan", reply=Reply("Plan"), body="application/json",
    ),
    Route(
        f"{_RUN}/why", ("GET",), _runs("get", "run"), lambda s: s.runs.why,
        "Why a Run waits, or how it ended.", "why", parameters=(parameters.ARRAY_INDEX,),
        reply=Reply("Why"),
    ),
    Route(
        f"{_RUN}/addresses", ("GET",), _GET_RUN, lambda s: s.rendezvous.addresses,
        "Addresses of the Run's pods.", "addresses", parameters=parameters.RENDEZVOUS,
        waits=True,
    ),
    Route(
        f"{_RUN}/logs", ("GET",), _READ_LOGS, lambda s: s.logs.list,
        "Archived logs of a Run.", "logs", parameters=(parameters.ARRAY_INDEX,),
        reply=Reply("KeptLogs"),
    ),
    Route(
        f"{_RUN}/logs/{{log}}", ("GET",), _READ_LOGS, lambda s: s.logs.read,
        "One archived log.", "logs", parameters=parameters.LOG, reply=Reply(media=("text/plain",)),
        waits=True,
    ),
    Route(
        f"{_RUN}/logs/{{log}}", ("PUT",), _WRITE_LOGS, lambda s: s.logs.put_record,
        "Completes an archived log.", "logs", parameters=(parameters.RUN_UID,), reply=_EMPTY,
        body="application/json",
    ),
    Route(
        f"{_RUN}/logs/{{log}}/{{container}}/{{number}}", ("PUT",), _WRITE_LOGS,
        lambda s: s.logs.put_segment, "A segment of a log.", "logs",
        parameters=(parameters.RUN_UID,), reply=_EMPTY, body=_BYTES,
    ),
)  # fmt: skip

_FILE_ROUTES = (
    Route(
        f"{_RUN}/files", ("GET",), _EXEC, _embedded(lambda e: e.files.list),
        "Files of a replica that has ended.", "files", parameters=parameters.FILES,
        reply=Reply("FileList"), embedded=True,
    ),
    Route(
        f"{_RUN}/files/content", ("GET",), _EXEC, _embedded(lambda e: e.files.content),
        "Bytes of a file of a replica that has ended.", "files",
        parameters=parameters.FILE_CONTENT, reply=_CONTENT, embedded=True, waits=True,
    ),
)  # fmt: skip

_OUTPUT_ROUTES = (
    Route(
        f"{_NAMESPACE}/outputs", ("GET",), _CREATE_RUNS, lambda s: s.outputs.usage,
        "Bytes of outputs that a team keeps, and its quota.", "outputs",
        reply=Reply("OutputUsage"),
    ),
    Route(
        f"{_RUN}/outputs", ("GET",), _READ_OUTPUTS, lambda s: s.outputs.list,
        "Files that replicas of a Run wrote.", "outputs", parameters=parameters.OUTPUTS,
        reply=Reply("OutputList"),
    ),
    Route(
        f"{_RUN}/outputs/pod", ("GET",), _OUTPUTS, lambda s: s.outputs.pod,
        "For a pod: how its command fares.", "outputs", reply=Reply("OutputPod"),
    ),
    Route(
        f"{_RUN}/outputs/check", ("POST",), _OUTPUTS, lambda s: s.outputs.check,
        "For a pod: whether so many bytes may be kept.", "outputs", "create", reply=_EMPTY,
        body="application/json",
    ),
    Route(
        f"{_RUN}/outputs/publish", ("POST",), _OUTPUTS, lambda s: s.outputs.publish,
        "For a pod: its files are complete.", "outputs", "create", reply=_EMPTY,
        body="application/json",
    ),
    Route(
        f"{_RUN}/outputs/blobs/{{digest}}", ("HEAD",), _OUTPUTS, lambda s: s.outputs.head,
        "Size of an output, or bytes sent so far.", "outputs", reply=Reply(media=()),
    ),
    Route(
        f"{_RUN}/outputs/blobs/{{digest}}", ("GET",), _READ_OUTPUTS, lambda s: s.outputs.get,
        "Content of an output.", "outputs", reply=_CONTENT, waits=True,
    ),
    Route(
        f"{_RUN}/outputs/blobs/{{digest}}", ("PATCH",), _OUTPUTS, lambda s: s.outputs.upload,
        "Sends a piece of an output.", "outputs", "patch", parameters.UPLOAD, _EMPTY, _BYTES,
        waits=True,
    ),
)  # fmt: skip

_POD_ROUTES = (
    Route(
        f"{ROOT}/externalpods", ("GET",), _LIST_ALL_PODS, lambda s: s.external_pods.list,
        "External pods of all teams.", "externalpods", parameters=parameters.EXTERNAL_PODS,
        reply=Reply("ExternalPodPage"),
    ),
    Route(
        f"{_NAMESPACE}/externalpods", ("GET",), _LIST_PODS, lambda s: s.external_pods.list,
        "External pods of a team.", "externalpods", parameters=parameters.EXTERNAL_PODS,
        reply=Reply("ExternalPodPage"),
    ),
    Route(
        f"{_NAMESPACE}/externalpods/{{pod}}/why", ("GET",), _GET_POD,
        lambda s: s.external_pods.why, "Why an external pod waits.", "why", reply=Reply("Why"),
    ),
)  # fmt: skip

_USAGE_ROUTES = (
    Route(
        f"{ROOT}/usage", _READ, _runs("list", audience="platform"), lambda s: s.usage.usage,
        "Usage of all teams.", "usage", parameters=parameters.USAGE, reply=Reply("Usage"),
    ),
    Route(
        f"{_NAMESPACE}/usage", _READ, _runs("list"), lambda s: s.usage.usage,
        "Usage of one team.", "usage", parameters=parameters.USAGE, reply=Reply("Usage"),
    ),
    Route(
        f"{_NAMESPACE}/statement", _READ, _runs("list"), lambda s: s.usage.statement,
        "A team's month.", "statement", parameters=(parameters.MONTH, parameters.FORMAT),
        reply=Reply("Statement", media=_PAGES),
    ),
    Route(
        f"{ROOT}/statement", _READ, _runs("list", audience="platform"),
        lambda s: s.usage.statement, "A month of all teams.", "statement",
        parameters=(parameters.MONTH, parameters.FORMAT), reply=Reply("Statement", media=_PAGES),
    ),
    Route(
        f"{ROOT}/fleet", _READ, _runs("list", audience="platform"), lambda s: s.usage.fleet,
        "All devices over time.", "fleet", parameters=parameters.FLEET,
        reply=Reply("Fleet", media=_PAGES),
    ),
    Route(
        f"{ROOT}/verify", _READ, _runs("list", audience="platform"), lambda s: s.usage.verify,
        "Whether the ledger adds up.", "verify", parameters=parameters.PERIOD,
        reply=Reply("Verdict"),
    ),
)  # fmt: skip

_CODE_ROUTES = (
    Route(
        f"{_NAMESPACE}/blobs/{{digest}}", ("HEAD",), _CODE, lambda s: s.blobs.head,
        "Size of a blob, or bytes uploaded so far.", "blobs", reply=Reply(media=()),
    ),
    Route(
        f"{_NAMESPACE}/blobs/{{digest}}", ("GET",), _CODE, lambda s: s.blobs.get,
        "Content of a blob.", "blobs", reply=_CONTENT, waits=True,
    ),
    Route(
        f"{_NAMESPACE}/blobs/{{digest}}", ("PATCH",), _CODE, lambda s: s.blobs.upload,
        "Uploads a piece of a blob.", "blobs", "patch", parameters.UPLOAD, _EMPTY, _BYTES,
        waits=True,
    ),
)  # fmt: skip

_MAILBOX_ROUTES = (
    Route(
        f"{_NAMESPACE}/mailboxes", ("POST",), _CREATE_RUNS, lambda s: s.mailboxes.create,
        "Creates a mailbox.", reply=Reply(code=201),
    ),
    Route(
        _BOX, ("DELETE",), _CREATE_RUNS, lambda s: s.mailboxes.delete,
        "Deletes a mailbox.", reply=_EMPTY,
    ),
    Route(
        f"{_BOX}/events", ("GET",), _CREATE_RUNS, lambda s: s.mailboxes.events,
        "Events since a position.", parameters=parameters.EVENTS, waits=True,
    ),
    Route(
        f"{_BOX}/calls/{{key}}", ("PUT",), _CREATE_RUNS, lambda s: s.mailboxes.put_call,
        "Puts a call.", reply=_EMPTY, body=_BYTES, waits=True,
    ),
    Route(
        f"{_BOX}/calls/{{key}}", ("DELETE",), _CREATE_RUNS, lambda s: s.mailboxes.discard_call,
        "Discards a call and its result.", reply=_EMPTY,
    ),
    Route(
        f"{_BOX}/results/{{key}}", ("GET",), _CREATE_RUNS, lambda s: s.mailboxes.result,
        "The result of a call.", reply=_CONTENT, waits=True,
    ),
    Route(
        f"{_BOX}/worker/take", ("POST",), MailboxToken(), lambda s: s.mailboxes.take,
        "The next call for a worker.", parameters=parameters.WORKER, reply=_CONTENT, waits=True,
    ),
    Route(
        f"{_BOX}/worker/calls/{{key}}", ("GET",), MailboxToken(), lambda s: s.mailboxes.read_call,
        "A call, for a worker.", reply=_CONTENT, waits=True,
    ),
    Route(
        f"{_BOX}/worker/results/{{key}}", ("PUT",), MailboxToken(),
        lambda s: s.mailboxes.put_result, "Puts the result of a call.", reply=_EMPTY, body=_BYTES,
        waits=True,
    ),
)  # fmt: skip

_STEP_ROUTES = (
    Route(
        f"{_NAMESPACE}/steps", ("GET",), _runs("list"), lambda s: s.steps.list,
        "Executed steps of pipelines.", "steps", "list", parameters.STEPS, Reply("StepList"),
    ),
    Route(
        f"{_NAMESPACE}/steps/lookup", ("POST",), _CREATE_RUNS, lambda s: s.steps.look_up,
        "Results of steps by key; claims those without one.", "steps", "create",
        reply=Reply("StepLookup"), body="application/json",
    ),
    Route(
        f"{_NAMESPACE}/steps/renew", ("POST",), _CREATE_RUNS, lambda s: s.steps.renew,
        "Extends the claims of a driver.", "steps", "update", reply=Reply("StepClaims"),
        body="application/json",
    ),
    Route(
        f"{_NAMESPACE}/steps/release", ("POST",), _CREATE_RUNS, lambda s: s.steps.release,
        "Gives up claims.", "steps", "delete", reply=_EMPTY, body="application/json",
    ),
    Route(
        f"{_NAMESPACE}/steps/similar", ("POST",), _CREATE_RUNS, lambda s: s.steps.similar,
        "What the last results of a step were made of.", "steps", "get",
        reply=Reply("SimilarSteps"), body="application/json",
    ),
    Route(
        f"{_NAMESPACE}/stepresults/{{stepkey}}", ("PUT",), _CREATE_RUNS, lambda s: s.steps.complete,
        "The result of a claimed step.", "stepresults", "update", reply=_EMPTY,
        body="application/json",
    ),
)  # fmt: skip

_STUDY_ROUTES = (
    Route(
        f"{_NAMESPACE}/studies", ("GET",), _runs("list"), lambda s: s.studies.list,
        "Hyperparameter studies.", "studies", "list", parameters.STUDIES, Reply("StudyList"),
    ),
    Route(
        f"{_NAMESPACE}/studies", ("POST",), _CREATE_RUNS, lambda s: s.studies.create,
        "Creates a study, or returns the existing one.", "studies", "create",
        reply=Reply("Study", 201), body="application/json",
    ),
    Route(
        _STUDY, ("GET",), _runs("list"), lambda s: s.studies.get, "A study.", "studies",
        reply=Reply("Study"),
    ),
    Route(
        _STUDY, ("DELETE",), _CREATE_RUNS, lambda s: s.studies.delete,
        "Removes a study and its trials.", "studies", "delete", reply=_EMPTY,
    ),
    Route(
        f"{_STUDY}/claim", ("POST",), _CREATE_RUNS, lambda s: s.studies.claim,
        "Makes a driver the writer of a study.", "studies", "update", reply=_EMPTY,
        body="application/json",
    ),
    Route(
        f"{_STUDY}/release", ("POST",), _CREATE_RUNS, lambda s: s.studies.release,
        "Ends the claim of a driver.", "studies", "update", reply=_EMPTY, body="application/json",
    ),
    Route(
        f"{_STUDY}/trials", ("GET",), _runs("list"), lambda s: s.studies.trials,
        "Trials of a study.", "trials", "list", parameters.TRIALS, Reply("TrialList"),
    ),
    Route(
        f"{_STUDY}/trials", ("PUT",), _CREATE_RUNS, lambda s: s.studies.put_trials,
        "Stores trials of the writer.", "trials", "update", reply=_EMPTY, body="application/json",
    ),
)  # fmt: skip

_QUEUE_ROUTES = (
    Route(
        f"{ROOT}/queues", ("GET",), _LIST_QUEUES, lambda s: s.queues.tree,
        "The quota tree.", "queues", reply=Reply("QueueTree"),
    ),
    Route(
        f"{ROOT}/queues/plan", ("POST",), _UPDATE_QUEUES, lambda s: s.queues.plan,
        "What another quota tree would change.", "queues", reply=Reply("QueuePlan"),
        body="application/json",
    ),
)  # fmt: skip

_TOKEN_ROUTES = (
    Route(
        f"{ROOT}/tokens", ("GET",), OwnTokens("list"), _embedded(lambda e: e.tokens.list_tokens),
        "Tokens.", "tokens", "list", reply=Reply("TokenList"), embedded=True,
    ),
    Route(
        f"{ROOT}/tokens", ("POST",), _CREATE_TOKENS, _embedded(lambda e: e.tokens.create),
        "Creates a token.", "tokens", "create", reply=Reply("Token", 201), body="application/json",
        embedded=True,
    ),
    Route(
        f"{ROOT}/tokens/{{token}}", ("DELETE",), OwnTokens("delete", "platform"),
        _embedded(lambda e: e.tokens.revoke), "Revokes a token.", "tokens", "delete",
        reply=Reply("Token"), embedded=True,
    ),
    Route(
        f"{ROOT}/tokens/{{token}}/rotate", ("POST",), OwnTokens("update", "platform"),
        _embedded(lambda e: e.tokens.rotate), "Replaces a token by a new one.", "tokens", "update",
        reply=Reply("Token", 201), embedded=True,
    ),
)  # fmt: skip


def _metrics(nodes: str, pods: str, namespace: str) -> tuple[Route, ...]:
    """Reads of metrics; `nodes`, `pods` and `namespace` are the beginnings of their paths."""
    own, plural = "nodemetrics", pods.rpartition("/")[2]
    return (
        Route(
            nodes, _READ, _LIST_NODES, lambda s: s.metrics.nodes, "Metrics of nodes.", own,
            reply=Reply("NodeMetricsList"),
        ),
        Route(
            f"{nodes}/{{node}}", _READ, _GET_NODE, lambda s: s.metrics.nodes,
            "Metrics of a node.", own, reply=Reply("NodeMetrics"),
        ),
        Route(
            pods, _READ, _LIST_ALL_PODS, lambda s: s.metrics.pods, "Metrics of all pods.",
            "podmetrics", parameters=parameters.SELECTOR, reply=Reply("PodMetricsList"),
        ),
        Route(
            f"{namespace}/{plural}", _READ, _LIST_PODS, lambda s: s.metrics.pods,
            "Metrics of a team's pods.", "podmetrics", parameters=parameters.SELECTOR,
            reply=Reply("PodMetricsList"),
        ),
        Route(
            f"{namespace}/{plural}/{{pod}}", _READ, _GET_POD, lambda s: s.metrics.pods,
            "Metrics of a pod.", "podmetrics", reply=Reply("PodMetrics"),
        ),
    )  # fmt: skip


_METRICS_ROUTES = (
    *_metrics(f"{ROOT}/nodemetrics", f"{ROOT}/podmetrics", _NAMESPACE),
    *_metrics(f"{_METRICS}/nodes", f"{_METRICS}/pods", f"{_METRICS}/namespaces/{{namespace}}"),
    # The verb in the audit log is that of a read: each report would be a line there.
    Route(
        f"{ROOT}/nodemetrics/{{node}}", ("PUT",), _WRITE_METRICS, lambda s: s.metrics.put_node,
        "A report of a node's agent.", "nodemetrics", body="application/json",
    ),
    # Pages of an agent name the pods of all teams, as the server's own metrics do.
    Route(
        f"{_NODE_PROXY}/metrics/resource", _READ, PathPermission("/metrics"),
        _embedded(lambda e: e.agents.resource_metrics), "An agent's metrics.", embedded=True,
    ),
    Route(
        f"{_NODE_PROXY}/stats/summary", _READ, PathPermission("/metrics"),
        _embedded(lambda e: e.agents.stats_summary), "An agent's summary.", embedded=True,
    ),
)  # fmt: skip

ROUTES: tuple[Route, ...] = (
    *_RUN_ROUTES, *_OUTPUT_ROUTES, *_FILE_ROUTES, *_POD_ROUTES, *_USAGE_ROUTES, *_CODE_ROUTES,
    *_MAILBOX_ROUTES, *_STEP_ROUTES, *_STUDY_ROUTES, *_QUEUE_ROUTES, *_TOKEN_ROUTES,
    *_METRICS_ROUTES,
)  # fmt: skip
