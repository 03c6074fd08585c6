"""Request counts, latencies and open watches, in Prometheus' text form for `/metrics`."""

from __future__ import annotations

import bisect
from collections import defaultdict

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, int], int] = defaultdict(int)
        self._buckets: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = defaultdict(float)
        self.watches: dict[str, int] = defaultdict(int)
        """Open watches by resource."""

    def observe(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Counts one answered request. The length of a watch is not a latency."""
        self._requests[verb, resource, code] += 1
        if verb == "watch":
            return
        buckets = self._buckets.get(verb)
        if buckets is None:
            buckets = self._buckets[verb] = [0] * (len(_BUCKETS) + 1)
        buckets[bisect.bisect_left(_BUCKETS, seconds)] += 1
        self._seconds[verb] += seconds

    def render(self) -> str:
        lines = [
            "# HELP windlass_api_requests_total Requests answered.",
            "# TYPE windlass_api_requests_total counter",
        ]
        for (verb, resource, code), count in sorted(self._requests.items()):
            labels = f'verb="{verb}",resource="{resource}",code="{code}"'
            lines.append(f"windlass_api_requests_total{{{labels}}} {count}")
        lines += [
            "# HELP windlass_api_watches Open watches.",
            "# TYPE windlass_api_watches gauge",
        ]
        for resource, count in sorted(self.watches.items()):
            lines.append(f'windlass_api_watches{{resource="{resource}"}} {count}')
        lines += [
            "# HELP windlass_api_request_seconds Time to the answer.",
            "# TYPE windlass_api_request_seconds histogram",
        ]
        for verb, buckets in sorted(self._buckets.items()):
            lines += self._histogram(verb, buckets)
        return "\n".join(lines) + "\n"

    def _histogram(self, verb: str, buckets: list[int]) -> list[str]:
        name, total, lines = "windlass_api_request_seconds", 0, []
        for bound, count in zip((*_BUCKETS, "+Inf"), buckets, strict=True):
            total += count
            lines.append(f'{name}_bucket{{verb="{verb}",le="{bound}"}} {total}')
        lines.append(f'{name}_sum{{verb="{verb}"}} {self._seconds[verb]:.6f}')
        lines.append(f'{name}_count{{verb="{verb}"}} {total}')
        return lines
