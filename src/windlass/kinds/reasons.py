"""Why something waits, failed or was stopped: constants, each with the actor and the remedy.

Status fields, events, `windlass why` and docs/reference/reasons.md all use these; no package
defines reasons of its own.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Final, Literal

Actor = Literal["nobody", "user", "team", "platform"]


@dataclasses.dataclass(frozen=True, slots=True)
class About:
    """The meaning of a reason, the actor, and the remedy."""

    actor: Actor
    meaning: str
    remedy: str
    command: str


class Reason(enum.StrEnum):
    """The reasons, as the strings in status fields."""

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
    WAITING_FOR_DEPENDENCY = "WaitingForDependency"
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
    OUT_OF_DISK = "OutOfDisk"
    IMAGE_OR_ENVIRONMENT_FAILED = "ImageOrEnvironmentFailed"
    MOUNT_FAILED = "MountFailed"
    CODE_FAILED = "CodeFailed"
    TIMEOUT = "Timeout"
    DEPENDENCY_FAILED = "DependencyFailed"
    INDICES_FAILED = "IndicesFailed"
    USER_STOPPED = "UserStopped"
    MISSED_START = "MissedStart"
    LAST_NOT_ENDED = "LastNotEnded"

    @property
    def about(self) -> About:
        return ABOUT[self]


ABOUT: Final[dict[Reason, About]] = {
    Reason.WAITING_FOR_QUOTA: About(
        "team",
        "The queue may not use more now: its limit, or the amount that others lend, is reached.",
        "Wait, ask for less, or have the queue's guarantee or limit raised.",
        "kubectl get queue NAME -o yaml",
    ),
    Reason.WAITING_FOR_SHARE: About(
        "nobody",
        "The queue used more than its share lately while other queues wait below theirs.",
        "Wait until the difference decays, or until the other queues have their entitlement. A "
        "larger weight or a guarantee helps permanently.",
        "windlass queue list",
    ),
    Reason.WAITING_FOR_CAPACITY: About(
        "nobody",
        "The queue has quota left, but the nodes have too little free capacity; the message names "
        "the missing resources.",
        "Wait until other runs end, or request less of the missing resources.",
        "kubectl get nodes",
    ),
    Reason.WAITING_FOR_TOPOLOGY: About(
        "user",
        "Enough capacity is free, but not where it may be placed: within one domain of the "
        "required topology or bundle, or where terms about other pods allow it.",
        "Wait, or relax the rule: --topology rack instead of rack! "
        "(spec.placement.topology.mode: preferred), or a preferred affinity of the pod.",
        "kubectl explain run.spec.placement.topology",
    ),
    Reason.BEHIND_IN_QUEUE: About(
        "nobody",
        "Earlier runs of the queue wait for the same resources, and the queue is strict.",
        "Wait, or raise its priority, up to the queue's maxPriority.",
        "windlass set-priority NAME 80",
    ),
    Reason.RESERVED_UNTIL: About(
        "user",
        "The capacity is free but reserved, for a blocked run or by a Reservation that the message "
        "names, and the run would not end in time.",
        "State how long it takes with --expected (spec.duration.expected), so that it can be "
        "backfilled.",
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
        "Wait until it is ready, or check the status of the dataset or claim.",
        "kubectl describe run NAME",
    ),
    Reason.WAITING_FOR_MEMBERS: About(
        "user",
        "Pods that must start together do not all exist yet.",
        "Check the controller that creates them, and the stated size of the gang.",
        "kubectl get pods",
    ),
    Reason.WAITING_TO_RETRY: About(
        "nobody",
        "An attempt failed and is retried; the delay grows with each attempt.",
        "Wait, or look at why the last attempt ended.",
        "kubectl get run NAME -o yaml",
    ),
    Reason.WAITING_FOR_DEPENDENCY: About(
        "nobody",
        "A run that it names with --after (spec.after) has not ended yet. Until then it takes no "
        "place in the queue.",
        "Wait until that run has ended, or look at why it has not.",
        "windlass why NAME",
    ),
    Reason.SUSPENDED: About(
        "user",
        "A user suspended it (spec.suspend).",
        "Resume it: windlass resume NAME.",
        "windlass resume NAME",
    ),
    Reason.NO_SUCH_QUEUE: About(
        "user",
        "The queue of the run, or the default queue of its namespace, does not exist.",
        "Name an existing queue with --queue (spec.queue), or have the queue created.",
        "kubectl get queues",
    ),
    Reason.QUEUE_PAUSED: About(
        "team",
        "Its queue, or a parent of it, is paused or draining: no run starts there.",
        "Wait until the queue is resumed, or move the run to another queue.",
        "windlass queue resume NAME",
    ),
    Reason.QUEUE_NOT_YOURS: About(
        "user",
        "The queue that it names is for other namespaces, or only groups other queues.",
        "Leave out --queue (spec.queue) to use your team's own queue, or have the queue opened to "
        "you.",
        "windlass queue tree",
    ),
    Reason.IMPOSSIBLE: About(
        "user",
        "No nodes could ever run it, even if all were empty; the message has the nearest fit.",
        "Ask for less of what the message names, or have a larger node added.",
        "kubectl get nodes",
    ),
    Reason.UNSUPPORTED: About(
        "user",
        "It asks for something that this engine does not support.",
        "Leave out what the message names, or submit it to an engine that can.",
        "windlass doctor",
    ),
    Reason.ASSIGNED: About(
        "nobody",
        "It has an assignment; its replicas are starting.",
        "No action needed.",
        "kubectl get pods -l windlass.dev/run=NAME",
    ),
    Reason.MEMBERS_RUNNING: About(
        "nobody",
        "All of its replicas run.",
        "No action needed.",
        "windlass logs NAME",
    ),
    Reason.COMPLETED: About(
        "nobody",
        "The run succeeded.",
        "No action needed.",
        "windlass logs NAME",
    ),
    Reason.PREEMPTED: About(
        "nobody",
        "The scheduler stopped it so that another run can start. It queues again unless "
        "spec.retries.causes leaves Preempted out. This costs no retry.",
        "Save checkpoints, so that the next attempt continues where this one ended.",
        "kubectl explain run.spec.checkpoint",
    ),
    Reason.RESIZED: About(
        "nobody",
        "It starts again with more or fewer replicas than before, because its roles have "
        "`resize: restart`. This costs no retry.",
        "Set resize to live if the program supports replicas that join and leave.",
        "kubectl explain run.spec.roles.resize",
    ),
    Reason.NODE_REFUSED: About(
        "platform",
        "A node rejected a pod that was placed there: it has less free capacity than it reported. "
        "The run is placed again, on another node if possible; this costs no retry.",
        "Check what else runs on that node.",
        "kubectl describe node NAME",
    ),
    Reason.ADMISSION_REFUSED: About(
        "team",
        "The cluster refused a pod of it: a quota, a LimitRange, Pod Security, a policy or a "
        "webhook of its namespace; the message has the text of the refusal. Nothing of it runs. "
        "It is retried with a growing delay; this costs no retry.",
        "Change what the message names, or have the rule changed.",
        "kubectl describe resourcequota,limitrange -n NAMESPACE",
    ),
    Reason.NODE_LOST: About(
        "platform",
        "A node that ran one of its replicas is lost.",
        "Check the node; the run starts again if its retries allow.",
        "kubectl describe node NAME",
    ),
    Reason.AGENT_LOST: About(
        "platform",
        "The agent of a node does not report, so the state of its replicas is unknown.",
        "Restart the agent on that node.",
        "windlass status",
    ),
    Reason.OUT_OF_MEMORY: About(
        "user",
        "A replica used more memory than it asked for and was killed.",
        "Ask for more memory: --memory (spec.roles[].resources.memory).",
        "kubectl explain run.spec.roles.resources",
    ),
    Reason.OUT_OF_SHARED_MEMORY: About(
        "user",
        "A replica used up its /dev/shm.",
        "Ask for more: --shm (spec.roles[].resources.shm), or use fewer data loader processes.",
        "kubectl explain run.spec.roles.resources",
    ),
    Reason.OUT_OF_DISK: About(
        "user",
        "A replica had more files on the disk of its node than it may, and was ended. Its work "
        "folder, home, tmp, volumes that go with it and logs count.",
        "Remove files that are not needed, write to a mount (-v), or ask for more: --disk "
        "(spec.roles[].resources.disk).",
        "kubectl explain run.spec.roles.resources",
    ),
    Reason.IMAGE_OR_ENVIRONMENT_FAILED: About(
        "user",
        "The image could not be pulled or the environment could not be built.",
        "Read the end of the log; correct spec.environment.",
        "windlass logs NAME",
    ),
    Reason.MOUNT_FAILED: About(
        "user",
        "A mount of the run is not possible on its node.",
        "Correct the mount that the message names (-v), or make its folder on the node.",
        "windlass get run NAME",
    ),
    Reason.CODE_FAILED: About(
        "user",
        "The command ended with an exit code other than 0.",
        "Read the last lines of the log.",
        "windlass logs NAME",
    ),
    Reason.TIMEOUT: About(
        "user",
        "The run exceeded --timeout (spec.duration.max), or did not start within --start-timeout "
        "(spec.duration.start).",
        "Raise the limit, or shorten the job.",
        "kubectl explain run.spec.duration",
    ),
    Reason.DEPENDENCY_FAILED: About(
        "user",
        "A run that it names with --after (spec.after) ended in another way than it needs, so it "
        "can never start.",
        "Correct that run and submit both again; --after NAME:any starts whatever its end.",
        "windlass why NAME",
    ),
    Reason.INDICES_FAILED: About(
        "user",
        "All indices of the array have ended, and some of them failed.",
        "Read the log of one that failed, then submit those indices again with --array.",
        "windlass logs NAME --index 5",
    ),
    Reason.USER_STOPPED: About(
        "nobody",
        "A user stopped it.",
        "Submit it again to run it once more.",
        "kubectl describe run NAME",
    ),
    Reason.MISSED_START: About(
        "platform",
        "A start of a CronRun was missed: the platform was down, or the last Run took too long.",
        "None, if a later start replaced it; else raise spec.startingDeadline.",
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
