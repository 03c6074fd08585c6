"""What a process watches: one reflector per kind, made when it is first asked for.

The sets of one process share them, so nothing is watched or kept twice; a set that runs alone
watches, and needs the right to read, only what it asks for. They live as long as a term: a new
leader must list everything after it took the lease, or it would not know what the last one wrote.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from types import TracebackType
from typing import Any, TypeVar

from windlass.control import attaching, builds, engine, policy, runs
from windlass.control.volumes import Room
from windlass.kinds import clusterkinds, cronrun, kubernetes, meta, pricelist, queue, reservation
from windlass.kinds.run import Run
from windlass.store import client
from windlass.store.reflector import Reflector

T = TypeVar("T", bound=meta.Object)

NAMESPACE = "windlass-system"
SCHEDULER_LEASE = "windlass-scheduler"
BY_NODE = "node"
"""Name of the pod reflector's index by node."""


class Views:
    """Ask for what is needed, then enter: inside, all of it is there and kept up to date."""

    def __init__(self, store: client.Store) -> None:
        self._store = store
        self._asked: list[Reflector[Any]] = []
        self._if_served: list[tuple[str, Reflector[Any]]] = []
        """With the engine's fact that says whether there is such a kind. Without it they stay
        empty."""
        self._entered = False

    @functools.cached_property
    def nodes(self) -> Reflector[kubernetes.Node]:
        return self._keep(Reflector(self._store, kubernetes.Node))

    @functools.cached_property
    def pods(self) -> Reflector[kubernetes.Pod]:
        indexes = {
            runs.POD_INDEX: runs.pod_index,
            builds.POD_INDEX: builds.pod_index,
            BY_NODE: _node_index,
        }
        return self._keep(Reflector(self._store, kubernetes.Pod, indexes=indexes))

    @functools.cached_property
    def namespaces(self) -> Reflector[kubernetes.Namespace]:
        return self._keep(Reflector(self._store, kubernetes.Namespace))

    @functools.cached_property
    def runs(self) -> Reflector[Run]:
        return self._keep(Reflector(self._store, Run))

    @functools.cached_property
    def queues(self) -> Reflector[queue.Queue]:
        return self._keep(Reflector(self._store, queue.Queue))

    @functools.cached_property
    def reservations(self) -> Reflector[reservation.Reservation]:
        return self._keep(Reflector(self._store, reservation.Reservation))

    @functools.cached_property
    def crons(self) -> Reflector[cronrun.CronRun]:
        return self._keep(Reflector(self._store, cronrun.CronRun))

    @functools.cached_property
    def prices(self) -> Reflector[pricelist.PriceList]:
        return self._keep(Reflector(self._store, pricelist.PriceList))

    @functools.cached_property
    def engine(self) -> Reflector[kubernetes.ConfigMap]:
        return self._keep(self._one(kubernetes.ConfigMap, engine.NAME))

    @functools.cached_property
    def scheduling(self) -> Reflector[kubernetes.ConfigMap]:
        return self._keep(self._one(kubernetes.ConfigMap, policy.NAME))

    @functools.cached_property
    def claims(self) -> Reflector[clusterkinds.PersistentVolumeClaim]:
        return self._keep_if("claims", clusterkinds.PersistentVolumeClaim)

    @functools.cached_property
    def volumes(self) -> Reflector[clusterkinds.PersistentVolume]:
        return self._keep_if("claims", clusterkinds.PersistentVolume)

    @functools.cached_property
    def classes(self) -> Reflector[clusterkinds.StorageClass]:
        return self._keep_if("claims", clusterkinds.StorageClass)

    @functools.cached_property
    def room_for_volumes(self) -> Room:
        return (
            self._keep_if("claims", clusterkinds.CSIDriver),
            self._keep_if("claims", clusterkinds.CSIStorageCapacity),
        )

    @functools.cached_property
    def attachments(self) -> attaching.Seen:
        return (
            self._keep_if("claims", clusterkinds.CSINode),
            self._keep_if("claims", clusterkinds.VolumeAttachment),
        )

    @functools.cached_property
    def quotas(self) -> Reflector[clusterkinds.ResourceQuota]:
        return self._keep_if("admission", clusterkinds.ResourceQuota)

    @functools.cached_property
    def budgets(self) -> Reflector[clusterkinds.PodDisruptionBudget]:
        return self._keep_if("admission", clusterkinds.PodDisruptionBudget)

    @functools.cached_property
    def runtimes(self) -> Reflector[clusterkinds.RuntimeClass]:
        return self._keep_if("images", clusterkinds.RuntimeClass)

    @functools.cached_property
    def scheduler_lease(self) -> Reflector[kubernetes.Lease]:
        return self._keep(self._one(kubernetes.Lease, SCHEDULER_LEASE))

    def pods_of(self, uid: str) -> list[kubernetes.Pod]:
        """Of the Run with this uid."""
        return self.pods.by(runs.POD_INDEX, uid)

    async def __aenter__(self) -> Views:
        self._entered = True
        try:
            for reflector in self._asked:
                reflector.start()
            await self._start_served()
            for reflector in self._asked:
                await reflector.synced()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop()

    def trouble(self) -> str:
        """Why something cannot be read just now; "" when all is."""
        for reflector in self._asked:
            if reflector.last_error is not None:
                return f"cannot read: {reflector.last_error.message}"
        return ""

    def _keep(self, made: Reflector[T]) -> Reflector[T]:
        if self._entered:
            raise RuntimeError("ask for what is watched before the watching begins")
        self._asked.append(made)
        return made

    def _keep_if(self, fact: str, kind: type[T]) -> Reflector[T]:
        made: Reflector[T] = Reflector(self._store, kind)
        self._if_served.append((fact, made))
        return made

    async def _start_served(self) -> None:
        """As soon as the engine has said what it serves: the lists of nodes and pods take longer
        than that, and need not be waited for."""
        if not self._if_served:
            return
        await self.engine.synced()
        facts = engine.Engine.read(self.engine.get(engine.NAME, engine.NAMESPACE))
        served = [made for fact, made in self._if_served if getattr(facts, fact)]
        self._asked += served
        for reflector in served:
            reflector.start()

    def _one(self, kind: type[T], name: str) -> Reflector[T]:
        """One object of our own namespace: the right to read it is the right to that name."""
        return Reflector(self._store, kind, NAMESPACE, field_selector=f"metadata.name={name}")

    async def _stop(self) -> None:
        for reflector in self._asked:
            await reflector.stop()


def _node_index(pod: kubernetes.Pod) -> Iterable[str]:
    return (pod.spec.node_name,) if pod.spec.node_name else ()
