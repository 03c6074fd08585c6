"""Which epoch of the scheduler counts today, for the run controller: read from its Lease.

The scheduler may run in another process. An assignment of an earlier leader must not be started:
the leader of today may have given that room to somebody else. So an epoch counts only while its
leader is seen to renew: when nothing was heard of the lease for as long as a leader itself may go
on without a renewal, no epoch counts and nothing is started, because by the end of the lease
another leader may decide. What runs goes on; only starts wait.
"""

from __future__ import annotations

from collections.abc import Callable

from windlass.control import leader
from windlass.kinds import kubernetes
from windlass.store.reflector import Change, Reflector

UNKNOWN = 0
"""No assignment has it: the first leader's epoch is 1."""


class Epoch:
    """The scheduler's epoch, as far as it is known. `woken` is called when one begins to count."""

    def __init__(
        self,
        lease: Reflector[kubernetes.Lease],
        woken: Callable[[], None],
        *,
        longest_silence: float = leader.Timing().renew_deadline,
        clock: Callable[[], float] = leader.steady_clock,
    ) -> None:
        self._woken = woken
        self._longest_silence = longest_silence
        self._clock = clock
        self._epoch = UNKNOWN
        self._heard_at = 0.0
        lease.add_handler(self._see)

    def current(self) -> int:
        """UNKNOWN when nobody leads, or when whoever led has fallen silent."""
        silent = self._clock() - self._heard_at >= self._longest_silence
        return UNKNOWN if silent else self._epoch

    def _see(self, _: Change, __: kubernetes.Lease | None, after: kubernetes.Lease | None) -> None:
        counted = self.current()
        led = after is not None and bool(after.spec.holder_identity)
        self._epoch = (after.spec.lease_transitions or UNKNOWN) if after and led else UNKNOWN
        self._heard_at = self._clock()
        if self._epoch not in (counted, UNKNOWN):
            self._woken()
