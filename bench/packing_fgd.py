"""FGD, the published rival of our packing rule ("Beware of Fragmentation", USENIX ATC'23).

The reference policy of `bench.packing` for traces without published figures. Scores are integers
cut from floating-point sums, so the order of additions is the published simulator's: fragments are
added per category over typical pods in descending frequency, then the categories.
"""

from __future__ import annotations

import collections

import numpy as np
import numpy.typing as npt

from windlass.core.packing.potential import WHOLE, DemandShape, Fleet, Floats, Ints

COVERED = 0.95
"""Part of all pods that the typical ones make up."""

# Categories of fragments, in the order in which they are added.
_LACKS_BOTH, _LACKS_DEVICE, _LACKS_CPU, _NO_DEVICE_FITS, _NO_DEVICE_LACKS, _NO_ACCESS = range(6)
_CATEGORIES = 6


class Fgd:
    """One replay under FGD; nodes are in the order in which ties are broken."""

    def __init__(self, fleet: Fleet, counts: dict[DemandShape, float]) -> None:
        self._typical = _Typical(counts, fleet.models)
        self.cpu = fleet.cpu.copy()
        self.memory = fleet.memory.copy()
        self.left = fleet.devices.copy()
        self._model = fleet.model
        self._models = fleet.models
        self._before = self._typical.fragments(self.cpu, self.left, self._model)
        self._changed = np.zeros(len(self.cpu), dtype=np.int64)
        self._clock = 0
        self._rows: dict[DemandShape, tuple[int, Ints, Ints]] = {}

    def choose(self, shape: DemandShape) -> tuple[int, list[int]] | None:
        seen, scores, device = self._rows.get(
            shape, (-1, np.full(len(self.cpu), -1), np.full(len(self.cpu), -1))
        )
        dirty = np.flatnonzero(self._changed > seen)
        self._rows[shape] = self._clock, scores, device
        scores[dirty] = -1
        here = dirty[self._fits(shape, dirty)]
        if len(here):
            scores[here], device[here] = self._score(shape, here)
        node = int(scores.argmax())
        if scores[node] < 0:
            return None
        if shape.shared:
            return node, [int(device[node])]
        free = np.flatnonzero(self.left[node] == WHOLE)
        return node, [int(which) for which in free[: shape.count]]

    def place(self, shape: DemandShape, node: int, devices: list[int]) -> None:
        self.cpu[node] -= shape.cpu
        self.memory[node] -= shape.memory
        self.left[node, devices] -= shape.milli
        one = slice(node, node + 1)
        self._before[one] = self._typical.fragments(self.cpu[one], self.left[one], self._model[one])
        self._clock += 1
        self._changed[node] = self._clock

    def _fits(self, shape: DemandShape, nodes: Ints) -> npt.NDArray[np.bool_]:
        fits = (self.cpu[nodes] >= shape.cpu) & (self.memory[nodes] >= shape.memory)
        if shape.count:
            fits &= (self.left[nodes] >= shape.milli).sum(axis=1) >= shape.count
            if shape.models:
                accepted = np.array([name in shape.models for name in self._models])
                fits &= accepted[self._model[nodes]]
        return fits

    def _score(self, shape: DemandShape, nodes: Ints) -> tuple[Ints, Ints]:
        """Integer scores and, for shares, the first best device of each node."""
        if shape.shared:
            return self._score_share(shape, nodes)
        left = self.left[nodes]
        if shape.count:
            free = left == WHOLE
            left = np.where(free & (free.cumsum(axis=1) <= shape.count), 0, left)
        after = self._typical.fragments(self.cpu[nodes] - shape.cpu, left, self._model[nodes])
        return _as_score(self._before[nodes] - after), np.full(len(nodes), -1)

    def _score_share(self, shape: DemandShape, nodes: Ints) -> tuple[Ints, Ints]:
        left = self.left[nodes]
        width = left.shape[1]
        # Devices with equally much left score equally, and the first of them wins.
        repeated = (left[:, :, None] == left[:, None, :]) & np.tri(width, k=-1, dtype=bool)
        where, device = np.nonzero((left >= shape.milli) & ~repeated.any(axis=2))
        after = left[where]
        after[np.arange(len(where)), device] -= shape.milli
        options = nodes[where]
        fragments = self._typical.fragments(
            self.cpu[options] - shape.cpu, after, self._model[options]
        )
        scores = np.full((len(nodes), width), -1)
        scores[where, device] = _as_score(self._before[options] - fragments)
        best = scores.argmax(axis=1)
        return np.take_along_axis(scores, best[:, None], axis=1)[:, 0], best


def _as_score(gain: Floats) -> Ints:
    return (100.0 * (1.0 / (1.0 + np.exp(-gain / 1000.0)))).astype(np.int64)


class _Typical:
    """The most frequent shapes, and what of a node is a fragment to them."""

    def __init__(self, counts: dict[DemandShape, float], models: tuple[str, ...]) -> None:
        kinds: dict[tuple[int, int, int, str], float] = collections.defaultdict(float)
        for shape, count in counts.items():
            kinds[shape.cpu, shape.milli, shape.count, "|".join(shape.models)] += count
        total = sum(kinds.values())
        ranked = sorted(((n, *kind) for kind, n in kinds.items()), reverse=True)
        covered = np.cumsum([entry[0] for entry in ranked]) / total
        kept = ranked[: int(np.searchsorted(covered, COVERED)) + 1]
        self._cpu = np.array([entry[1] for entry in kept], dtype=np.int64)
        self._count = np.array([entry[3] for entry in kept], dtype=np.int64)
        self._sizes, self._size = np.unique(
            np.array([entry[2] for entry in kept], dtype=np.int64), return_inverse=True
        )
        self._access = np.array(
            [[not entry[4] or model in entry[4].split("|") for entry in kept] for model in models]
        )
        kept_total = sum(entry[0] for entry in kept)
        self._frequency = np.array([entry[0] / kept_total for entry in kept])

    def fragments(self, cpu: Ints, left: Ints, model: Ints) -> Floats:
        """The expected idle milli-devices that a typical pod cannot use, of each node state."""
        fits = left[:, :, None] >= self._sizes
        enough = fits.sum(axis=1)[:, self._size] >= self._count
        usable = (left[:, :, None] * fits).sum(axis=1)[:, self._size]
        idle = left.sum(axis=1)[:, None]
        has_cpu = cpu[:, None] >= self._cpu
        category = np.where(
            enough,
            np.where(has_cpu, _LACKS_DEVICE, _LACKS_CPU),
            np.where(has_cpu, _LACKS_DEVICE, _LACKS_BOTH),
        )
        category = np.where(self._access[model], category, _NO_ACCESS)
        no_device = np.where(has_cpu, _NO_DEVICE_FITS, _NO_DEVICE_LACKS)
        category = np.where(self._count == 0, no_device, category)
        runs = enough & has_cpu & (category == _LACKS_DEVICE)
        amount = np.where(runs, idle - usable, idle) * self._frequency
        bins = category + _CATEGORIES * np.arange(len(cpu))[:, None]
        # bincount adds one by one in the given order, as the published simulator does.
        sums = np.bincount(bins.ravel(), amount.ravel(), _CATEGORIES * len(cpu))
        return sums.reshape(len(cpu), _CATEGORIES).cumsum(axis=1)[:, -1]
