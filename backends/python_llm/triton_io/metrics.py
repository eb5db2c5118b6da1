"""Publishes how busy the engine is on Triton's metrics endpoint, under the names that vLLM's dashboards read.

One thread publishes on a clock, because each update costs about as much as a token. Does not know requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from python_llm.engine.engine import Load

_INTERVAL_S = 0.5

_GAUGES: dict[str, tuple[str, Callable[[Load], float]]] = {
    "vllm:num_requests_running": ("Sequences that are being computed", lambda load: load.num_running),
    "vllm:num_requests_waiting": ("Sequences that wait for a place", lambda load: load.num_waiting),
    "vllm:kv_cache_usage_perc": ("Share of the KV pages that requests hold, 1 = all", lambda load: load.kv_usage),
}
_COUNTERS: dict[str, tuple[str, Callable[[Load], int]]] = {
    "vllm:spec_decode_num_draft_tokens_total": ("Drafts that were verified", lambda load: load.num_drafted),
    "vllm:spec_decode_num_accepted_tokens_total": ("Drafts that became output", lambda load: load.num_accepted),
}


class MetricsPublisher:
    """Owner of the metric objects: the thread that made them keeps them alive."""

    def __init__(self, load: Callable[[], Load], model_name: str, model_version: str) -> None:
        import triton_python_backend_utils as pb_utils

        self._load = load
        self._stopping = threading.Event()
        labels = {"model": model_name, "version": model_version}
        self._gauges: list[tuple[Any, Any, Callable[[Load], float]]] = []
        self._counters: list[tuple[Any, Any, Callable[[Load], int]]] = []
        for name, (description, value) in _GAUGES.items():
            family = pb_utils.MetricFamily(name=name, description=description, kind=pb_utils.MetricFamily.GAUGE)
            self._gauges.append((family, family.Metric(labels=labels), value))
        for name, (description, count) in _COUNTERS.items():
            family = pb_utils.MetricFamily(name=name, description=description, kind=pb_utils.MetricFamily.COUNTER)
            self._counters.append((family, family.Metric(labels=labels), count))
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        published: list[float | None] = [None] * len(self._gauges)
        counted = [0] * len(self._counters)
        stopped = False
        while not stopped:
            # Once more at the end: Triton shows the last values for as long as it lives.
            stopped = self._stopping.wait(_INTERVAL_S)
            load = self._load()
            for index, (_, metric, value) in enumerate(self._gauges):
                if (current := value(load)) != published[index]:
                    metric.set(current)
                    published[index] = current
            for index, (_, metric, count) in enumerate(self._counters):
                if (total := count(load)) != counted[index]:
                    metric.increment(total - counted[index])
                    counted[index] = total
