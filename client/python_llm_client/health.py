"""Asks a running server over HTTP whether it is ready, and how its models are. Standard library only."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass


@dataclass(frozen=True)
class ModelState:
    """One line of Triton's repository index."""

    name: str
    state: str
    """READY, LOADING, UNLOADING, UNAVAILABLE, or "" for a model that Triton refused to look at."""
    reason: str


class Health:
    """Of the server at `host`:`port`. A server that does not answer is not ready; that is no error here."""

    def __init__(self, host: str, port: int) -> None:
        # A server that listens everywhere is asked at this machine's own address.
        self._host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        self._port = port

    def ready(self) -> bool:
        """All loaded models answer, and the server takes requests."""
        return self._ask("GET", "/v2/health/ready") is not None

    def models(self) -> list[ModelState] | None:
        """All models of the repositories; None when the server does not answer (yet)."""
        body = self._ask("POST", "/v2/repository/index")
        if body is None:
            return None
        return [ModelState(e["name"], e.get("state", ""), e.get("reason", "")) for e in json.loads(body)]

    def _ask(self, method: str, path: str) -> bytes | None:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=5)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.read() if response.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
