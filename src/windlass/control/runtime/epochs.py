"""The current epoch of the scheduler, for the run controller: read from its Lease.

The scheduler may run in another process. An assignment of an earlier leader must not be started:
the present leader may have assigned that capacity to another workload. So an epoch is valid only
while its leader is seen to renew. When the lease is silent for as long as a leader itself may
continue without a renewal, no epoch is valid and nothing is started, because by the end of the
lease another leader may decide. Running workloads continue; only starts wait.
"""

from __future__ import annotations

from collections.abc import Callable

from windlass.control.runtime import leader_election
from windlass.kinds.types import core
from windlass.store.informer import Change, Informer

UNKNOWN = 0
"""No assignment has it: the first leader's epoch is 1."""


class Epoch:
    """The scheduler's epoch, as far as it is known. `woken` is called when one becomes valid."""

    def __init__(
        self,
        lease: Informer[core.Lease],
        woken: Callable[[], None],
        *,
        longest_silence: float = leader_election.Timing().renew_deadline,
        clock: Callable[[], float] = leader_election.steady_clock,
    ) -> None:
        self._woken = woken
        self._longest_silence = longest_silence
        self._clock = clock
        self._epoch = UNKNOWN
        self._heard_at = 0.0
        lease.add_handler(self._see)

    def current(self) -> int:
        """UNKNOWN without a leader, or when the leader has fallen silent."""
        silent = self._clock() - self._heard_at >= self._longest_silence
        return UNKNOWN if silent else self._epoch

    def _see(self, _: Change, __: core.Lease | None, after: core.Lease | None) -> None:
        counted = self.current()
        led = after is not None and bool(after.spec.holder_identity)
        self._epoch = (after.spec.lease_transitions or UNKNOWN) if after and led else UNKNOWN
        self._heard_at = self._clock()
        if self._epoch not in (counted, UNKNOWN):
            self._woken()
