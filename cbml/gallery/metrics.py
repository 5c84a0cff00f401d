"""Counts of the service in the text form that Prometheus reads."""

import threading
from collections import Counter
from collections.abc import Mapping

__all__ = ["Metrics"]


class Metrics:
    """Requests by route and status, their time, and how many are under way."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._lock = threading.Lock()

    def count(self, route: str, status: int, seconds: float) -> None:
        """Note a request that was answered.

        Args:
            route: as in the table of routes, so that there are few of them.
            status: its HTTP code.
            seconds: from its first to its last byte.
        """
        with self._lock:
            self._requests[route, status] += 1
            self._seconds[route] += seconds  # type: ignore[assignment]  # a counter of floats

    def text(self, gauges: Mapping[str, float]) -> str:
        """Everything so far.

        Args:
            gauges: further numbers by name.
        """
        with self._lock:
            requests, seconds = sorted(self._requests.items()), sorted(self._seconds.items())
        lines = ["# TYPE cbml_requests_total counter"]
        lines += [
            f'cbml_requests_total{{route="{route}",status="{status}"}} {count}'
            for (route, status), count in requests
        ]
        lines.append("# TYPE cbml_request_seconds_total counter")
        lines += [
            f'cbml_request_seconds_total{{route="{route}"}} {total:.6f}' for route, total in seconds
        ]
        for name, value in {"cbml_requests_in_flight": self.in_flight, **gauges}.items():
            lines += [f"# TYPE {name} gauge", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"
