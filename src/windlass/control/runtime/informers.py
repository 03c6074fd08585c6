"""The informers of a process: one for each kind, created on first use.

Controller groups of one process share them, so nothing is watched or cached twice. A group that
runs alone watches only the kinds that it uses, and needs only the permission to read those. A
factory lives as long as a leader's term: a new leader must list everything after it took the lease,
or it would miss writes of the previous leader.
"""

from __future__ import annotations

import functools
from types import TracebackType
from typing import Any, TypeVar

from windlass.control.model import capabilities, pod_indexes, policy, run_indexes
from windlass.kinds.types import cluster, core, cronrun, meta, pricelist, queue, reservation
from windlass.kinds.types.run import Run
from windlass.store import interface
from windlass.store.informer import Informer

T = TypeVar("T", bound=meta.Object)

NAMESPACE = "windlass-system"
SCHEDULER_LEASE = "windlass-scheduler"


class InformerFactory:
    """Access the informers that are needed, then enter the context: inside it all of them are in
    sync and follow the store."""

    def __init__(self, store: interface.Store) -> None:
        self._store = store
        self._requested: list[Informer[Any]] = []
        self._if_served: list[tuple[str, Informer[Any]]] = []
        """With the capability of the engine that serves the kind. Without it the informer stays
        empty."""
        self._entered = False

    @functools.cached_property
    def nodes(self) -> Informer[core.Node]:
        return self._add(Informer(self._store, core.Node))

    @functools.cached_property
    def pods(self) -> Informer[core.Pod]:
        return self._add(Informer(self._store, core.Pod, indexes=pod_indexes.ALL))

    @functools.cached_property
    def namespaces(self) -> Informer[core.Namespace]:
        return self._add(Informer(self._store, core.Namespace))

    @functools.cached_property
    def runs(self) -> Informer[Run]:
        return self._add(Informer(self._store, Run, indexes=run_indexes.ALL))

    @functools.cached_property
    def queues(self) -> Informer[queue.Queue]:
        return self._add(Informer(self._store, queue.Queue))

    @functools.cached_property
    def reservations(self) -> Informer[reservation.Reservation]:
        return self._add(Informer(self._store, reservation.Reservation))

    @functools.cached_property
    def crons(self) -> Informer[cronrun.CronRun]:
        return self._add(Informer(self._store, cronrun.CronRun))

    @functools.cached_property
    def prices(self) -> Informer[pricelist.PriceList]:
        return self._add(Informer(self._store, pricelist.PriceList))

    @functools.cached_property
    def engine(self) -> Informer[core.ConfigMap]:
        return self._add(self._single(core.ConfigMap, capabilities.NAME))

    @functools.cached_property
    def scheduling(self) -> Informer[core.ConfigMap]:
        return self._add(self._single(core.ConfigMap, policy.NAME))

    @functools.cached_property
    def claims(self) -> Informer[cluster.PersistentVolumeClaim]:
        return self._add_if("claims", cluster.PersistentVolumeClaim)

    @functools.cached_property
    def volumes(self) -> Informer[cluster.PersistentVolume]:
        return self._add_if("claims", cluster.PersistentVolume)

    @functools.cached_property
    def storage_classes(self) -> Informer[cluster.StorageClass]:
        return self._add_if("claims", cluster.StorageClass)

    @functools.cached_property
    def csi_drivers(self) -> Informer[cluster.CSIDriver]:
        return self._add_if("claims", cluster.CSIDriver)

    @functools.cached_property
    def storage_capacities(self) -> Informer[cluster.CSIStorageCapacity]:
        return self._add_if("claims", cluster.CSIStorageCapacity)

    @functools.cached_property
    def csi_nodes(self) -> Informer[cluster.CSINode]:
        return self._add_if("claims", cluster.CSINode)

    @functools.cached_property
    def volume_attachments(self) -> Informer[cluster.VolumeAttachment]:
        return self._add_if("claims", cluster.VolumeAttachment)

    @functools.cached_property
    def resource_quotas(self) -> Informer[cluster.ResourceQuota]:
        return self._add_if("admission", cluster.ResourceQuota)

    @functools.cached_property
    def disruption_budgets(self) -> Informer[cluster.PodDisruptionBudget]:
        return self._add_if("admission", cluster.PodDisruptionBudget)

    @functools.cached_property
    def runtime_classes(self) -> Informer[cluster.RuntimeClass]:
        return self._add_if("images", cluster.RuntimeClass)

    @functools.cached_property
    def scheduler_lease(self) -> Informer[core.Lease]:
        return self._add(self._single(core.Lease, SCHEDULER_LEASE))

    def pods_of(self, uid: str) -> list[core.Pod]:
        """The pods of the Run with this uid."""
        return self.pods.by(pod_indexes.BY_RUN, uid)

    async def __aenter__(self) -> InformerFactory:
        self._entered = True
        try:
            for informer in self._requested:
                informer.start()
            await self._start_served()
            for informer in self._requested:
                await informer.synced()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        for informer in self._requested:
            await informer.stop()

    def trouble(self) -> str:
        """Why an informer cannot list or watch at present; "" if all can."""
        for informer in self._requested:
            if informer.last_error is not None:
                return f"cannot read: {informer.last_error.message}"
        return ""

    def _add(self, informer: Informer[T]) -> Informer[T]:
        if self._entered:
            raise RuntimeError("informers must be requested before the factory is entered")
        self._requested.append(informer)
        return informer

    def _add_if(self, capability: str, kind: type[T]) -> Informer[T]:
        _ = self.engine  # it names the capabilities
        informer: Informer[T] = Informer(self._store, kind)
        self._if_served.append((capability, informer))
        return informer

    async def _start_served(self) -> None:
        """Starts the informers of the kinds that the engine serves. Its ConfigMap is read before
        the lists of nodes and pods are complete, which take longer."""
        if not self._if_served:
            return
        await self.engine.synced()
        facts = capabilities.Engine.read(self.engine.get(capabilities.NAME, capabilities.NAMESPACE))
        served = [informer for name, informer in self._if_served if getattr(facts, name)]
        self._requested += served
        for informer in served:
            informer.start()

    def _single(self, kind: type[T], name: str) -> Informer[T]:
        """One object in the system namespace: it needs the permission to read that name only."""
        return Informer(self._store, kind, NAMESPACE, field_selector=f"metadata.name={name}")
