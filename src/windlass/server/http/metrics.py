"""The metrics of the server: requests, latencies and open watches. `/metrics` renders the registry,
which the controllers of the same process share.
"""

from __future__ import annotations

from windlass.telemetry.prometheus import Registry

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    def __init__(self, registry: Registry | None = None) -> None:
        self.registry = registry or Registry()
        self._requests = self.registry.counter(
            "windlass_api_requests_total", "Requests answered.", ("verb", "resource", "code")
        )
        self._seconds = self.registry.histogram(
            "windlass_api_request_seconds", "Time to the answer.", ("verb",), _BUCKETS
        )
        self._watches = self.registry.gauge(
            "windlass_api_watches", "Open watches.", ("resource",)
        )  # fmt: skip

    def observe(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """Counts one response. The length of a watch is not a latency."""
        self._requests.add(verb, resource, str(code))
        if verb != "watch":
            self._seconds.observe(verb, value=seconds)

    def watching(self, resource: str, change: int) -> None:
        """One watch more (1) or less (-1)."""
        self._watches.set(resource, to=self._watches.value(resource) + change)
