"""Why something waits, failed or was stopped: typed constants, each with who must act and how.

Status fields, events, `windlass why` and docs/reference/reasons.md all use these; no room writes
a reason of its own.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Final, Literal

Actor = Literal["nobody", "user", "team", "platform"]


@dataclasses.dataclass(frozen=True, slots=True)
class About:
    """What a reason means, who must act, and the one thing that helps."""

    actor: Actor
    meaning: str
    remedy: str
    command: str


class Reason(enum.StrEnum):
    """The reasons themselves; as strings they are what status fields carry."""

    WAITING_FOR_QUOTA = "WaitingForQuota"
    WAITING_FOR_SHARE = "WaitingForShare"
    WAITING_FOR_CAPACITY = "WaitingForCapacity"
    WAITING_FOR_TOPOLOGY = "WaitingForTopology"
    BEHIND_IN_QUEUE = "BehindInQueue"
    RESERVED_UNTIL = "ReservedUntil"
    BUDGET_EXHAUSTED = "BudgetExhausted"
    WAITING_FOR_DATA = "WaitingForData"
    WAITING_FOR_MEMBERS = "WaitingForMembers"
    WAITING_TO_RETRY = "WaitingToRetry"
    SUSPENDED = "Suspended"
    NO_SUCH_QUEUE = "NoSuchQueue"
    QUEUE_PAUSED = "QueuePaused"
    QUEUE_NOT_YOURS = "QueueNotYours"
    IMPOSSIBLE = "Impossible"
    UNSUPPORTED = "Unsupported"
    ASSIGNED = "Assigned"
    MEMBERS_RUNNING = "MembersRunning"
    COMPLETED = "Completed"
    PREEMPTED = "Preempted"
    RESIZED = "Resized"
    NODE_REFUSED = "NodeRefused"
    ADMISSION_REFUSED = "AdmissionRefused"
    NODE_LOST = "NodeLost"
    AGENT_LOST = "AgentLost"
    OUT_OF_MEMORY = "OutOfMemory"
    OUT_OF_SHARED_MEMORY = "OutOfSharedMemory"
    IMAGE_OR_ENVIRONMENT_FAILED = "ImageOrEnvironmentFailed"
    CODE_FAILED = "CodeFailed"
    TIMEOUT = "Timeout"
    USER_STOPPED = "UserStopped"
    MISSED_START = "MissedStart"
    LAST_NOT_ENDED = "LastNotEnded"

    @property
    def about(self) -> About:
        return ABOUT[self]


ABOUT: Final[dict[Reason, About]] = {
    Reason.WAITING_FOR_QUOTA: About(
        "team",
        "The queue may not use more right now: its limit, or what others lend it, is reached.",
        "Wait, ask for less, or have the queue's guarantee or limit raised.",
        "kubectl get queue NAME -o yaml",
    ),
    Reason.WAITING_FOR_SHARE: About(
        "nobody",
        "The queue used more than its share lately while others wait below theirs.",
        "Wait: it starts as that evens out, or as soon as the others have what they are entitled "
        "to. A larger weight or a guarantee would help for good.",
        "windlass queue list",
    ),
    Reason.WAITING_FOR_CAPACITY: About(
        "nobody",
        "The queue may use more, but no set of nodes has enough free; the message names what is "
        "short and by how much.",
        "Wait until other runs end, or ask for less of what is short.",
        "kubectl get nodes",
    ),
    Reason.WAITING_FOR_TOPOLOGY: About(
        "user",
        "Enough is free, but not near enough together for the required topology or bundle.",
        "Wait, or set spec.placement.topology.mode to preferred.",
        "kubectl explain run.spec.placement.topology",
    ),
    Reason.BEHIND_IN_QUEUE: About(
        "nobody",
        "Runs that come before it in the queue's order wait too, and must not be overtaken.",
        "Wait, or raise spec.priority up to the queue's maxPriority.",
        'kubectl patch run NAME --type merge -p \'{"spec":{"priority":80}}\'',
    ),
    Reason.RESERVED_UNTIL: About(
        "user",
        "What it needs is free but held for a run that waits longer, or by a Reservation that the "
        "message names, and it would not end in time.",
        "State how long it takes in spec.duration.expected, so that it can go before.",
        "kubectl explain run.spec.duration",
    ),
    Reason.BUDGET_EXHAUSTED: About(
        "team",
        "The queue's budget for this period is used up.",
        "Wait for the next period, have the budget raised, or have an administrator override it.",
        "windlass budget show NAME",
    ),
    Reason.WAITING_FOR_DATA: About(
        "nobody",
        "A dataset or claim that it mounts is not ready yet.",
        "Wait until it is loaded, or look at the dataset's own status.",
        "kubectl describe run NAME",
    ),
    Reason.WAITING_FOR_MEMBERS: About(
        "user",
        "Pods that must start together do not all exist yet.",
        "Look at who makes them, or at the size that the gang is said to have.",
        "kubectl get pods",
    ),
    Reason.WAITING_TO_RETRY: About(
        "nobody",
        "An attempt ended in a way that is tried again; the next one waits a little longer each "
        "time.",
        "Wait, or look at why the last attempt ended.",
        "kubectl get run NAME -o yaml",
    ),
    Reason.SUSPENDED: About(
        "user",
        "It is held by spec.suspend.",
        "Set spec.suspend to false to let it queue.",
        'kubectl patch run NAME --type merge -p \'{"spec":{"suspend":false}}\'',
    ),
    Reason.NO_SUCH_QUEUE: About(
        "user",
        "The queue that it names, or that its namespace should have, does not exist.",
        "Set spec.queue to one that exists, or have the queue created.",
        "kubectl get queues",
    ),
    Reason.QUEUE_PAUSED: About(
        "team",
        "Its queue, or one above it, is paused or being drained: nothing new starts there.",
        "Wait until the queue is opened again, or move the run to another queue.",
        "windlass queue resume NAME",
    ),
    Reason.QUEUE_NOT_YOURS: About(
        "user",
        "The queue that it names is for other namespaces, or only holds other queues together.",
        "Leave spec.queue out to use your team's own queue, or have the queue opened to you.",
        "windlass queue tree",
    ),
    Reason.IMPOSSIBLE: About(
        "user",
        "No node could ever hold one of its members, even if all were empty; the message has the "
        "nearest fit.",
        "Ask for at most what the nearest node has, or have such a node added.",
        "kubectl get nodes",
    ),
    Reason.UNSUPPORTED: About(
        "user",
        "It asks for something that this engine cannot do.",
        "Leave out what the message names, or submit it to an engine that can.",
        "windlass doctor",
    ),
    Reason.ASSIGNED: About(
        "nobody",
        "It has got room; its members are being started.",
        "Nothing to do.",
        "kubectl get pods -l windlass.dev/run=NAME",
    ),
    Reason.MEMBERS_RUNNING: About(
        "nobody",
        "All of its members run.",
        "Nothing to do.",
        "windlass logs NAME",
    ),
    Reason.COMPLETED: About(
        "nobody",
        "It ended with success.",
        "Nothing to do.",
        "windlass logs NAME",
    ),
    Reason.PREEMPTED: About(
        "nobody",
        "It was stopped to give its room to a run that has the better right to it; it queues again "
        "unless spec.retries.causes leaves Preempted out. This costs no retry.",
        "Save checkpoints, so that the next attempt goes on where this one ended.",
        "kubectl explain run.spec.checkpoint",
    ),
    Reason.RESIZED: About(
        "nobody",
        "It starts again with more or fewer members than before, because its roles say "
        "`resize: restart`. This costs no retry.",
        "Set resize to live if the program can go on while members come and go.",
        "kubectl explain run.spec.roles.resize",
    ),
    Reason.NODE_REFUSED: About(
        "platform",
        "A node did not take a member that was placed there: it has less room than it said. The "
        "run is placed again, elsewhere if it can; this costs no retry.",
        "Look at what else runs on that node.",
        "kubectl describe node NAME",
    ),
    Reason.ADMISSION_REFUSED: About(
        "team",
        "The cluster refused a pod of it: a quota, a LimitRange, Pod Security, a policy or a "
        "webhook of its namespace; the message has the words of the refusal. Nothing of it runs. "
        "It is tried again, later each time; this costs no retry.",
        "Change what the message names, or have the rule changed.",
        "kubectl describe resourcequota,limitrange -n NAMESPACE",
    ),
    Reason.NODE_LOST: About(
        "platform",
        "A node that ran one of its members is gone.",
        "Look after the node; the run starts again if its retries allow.",
        "kubectl describe node NAME",
    ),
    Reason.AGENT_LOST: About(
        "platform",
        "The agent of a node is silent, so what its members do is not known.",
        "Restart the agent on that node.",
        "windlass status",
    ),
    Reason.OUT_OF_MEMORY: About(
        "user",
        "A member used more memory than it asked for and was killed.",
        "Raise spec.roles[].resources.memory.",
        "kubectl explain run.spec.roles.resources",
    ),
    Reason.OUT_OF_SHARED_MEMORY: About(
        "user",
        "A member ran out of room in /dev/shm.",
        "Raise spec.roles[].resources.shm, or use fewer data loader processes.",
        "kubectl explain run.spec.roles.resources",
    ),
    Reason.IMAGE_OR_ENVIRONMENT_FAILED: About(
        "user",
        "The image could not be pulled or the environment could not be made.",
        "Read the end of the log; correct spec.environment.",
        "windlass logs NAME",
    ),
    Reason.CODE_FAILED: About(
        "user",
        "The command ended with an error; status.exitCode says which.",
        "Read the end of the log.",
        "windlass logs NAME",
    ),
    Reason.TIMEOUT: About(
        "user",
        "It did not start within spec.duration.start, or ran longer than spec.duration.max.",
        "Raise the limit, or make it shorter.",
        "kubectl explain run.spec.duration",
    ),
    Reason.USER_STOPPED: About(
        "nobody",
        "Somebody stopped it.",
        "Submit it again to run it once more.",
        "kubectl describe run NAME",
    ),
    Reason.MISSED_START: About(
        "platform",
        "A start of a CronRun was missed: the platform was down, or the last Run took too long.",
        "Nothing, if the latest start was made up for; else raise spec.startingDeadline.",
        "kubectl describe cronrun NAME",
    ),
    Reason.LAST_NOT_ENDED: About(
        "user",
        "A start of a CronRun waits because its last Run has not ended and spec.concurrencyPolicy "
        "is Forbid.",
        "Wait, or stop the last Run.",
        "kubectl describe cronrun NAME",
    ),
}
