"""What the gateway counts, for Prometheus. The engine's own gauges are on Triton's metrics port."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from python_llm_client.answers import Usage

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class GatewayMetrics:
    """Owned by the event loop of the requests."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "python_llm_gateway_requests", "Requests answered.", ["path", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "python_llm_gateway_request_seconds",
            "From a request's head to the last byte of its answer.",
            ["path"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._running = Gauge(
            "python_llm_gateway_requests_running", "Requests for text under way.", registry=self._registry
        )
        self._first_token = Histogram(
            "python_llm_gateway_time_to_first_token_seconds",
            "Of streams, from the translated request to the first part of its answer.",
            ["model"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._tokens = Counter("python_llm_gateway_tokens", "Tokens.", ["model", "kind"], registry=self._registry)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """`path`: one of our own, never what a client made up."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def running(self, number: int) -> None:
        self._running.set(number)

    def first_token(self, model: str, seconds: float) -> None:
        self._first_token.labels(model).observe(seconds)

    def spent(self, model: str, usage: Usage) -> None:
        self._tokens.labels(model, "prompt").inc(usage.prompt_tokens)
        self._tokens.labels(model, "output").inc(usage.output_tokens)

    def page(self) -> bytes:
        return generate_latest(self._registry)
