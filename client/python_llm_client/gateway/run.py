"""Runs a gateway in this process until a signal asks it to stop."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket

import uvicorn

from python_llm_client import preflight
from python_llm_client.errors import CommandError
from python_llm_client.gateway.app import create_app
from python_llm_client.gateway.settings import GatewaySettings

DRAIN_SECONDS = 25
"""How long running requests may take to finish after SIGTERM."""

STALLED_SECONDS = 90
"""After which the kernel ends a connection that takes nothing any more."""


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # A connection whose client does not read ends by itself then; accepted ones inherit this.
        for listener in (listener for server in self.servers for listener in server.sockets):
            with contextlib.suppress(OSError, AttributeError):
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * STALLED_SECONDS)
        if self.started:
            print("ready", flush=True)


def run_gateway(settings: GatewaySettings, host: str, port: int) -> None:
    """Prints `ready` when it takes requests. SIGTERM or SIGINT lets running ones finish. Raises CommandError."""
    preflight.check_ports(host, {"--port": port})
    logging.basicConfig(format="python-llm gateway: %(message)s", level=logging.WARNING)
    config = uvicorn.Config(
        create_app(settings),
        host=host,
        port=port,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=DRAIN_SECONDS,
        # Beyond what may run there are those that wait for their refusal, look at the page or ask for metrics.
        limit_concurrency=4 * settings.max_concurrent + 64,
        server_header=False,
    )
    server = _Server(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn raises what stopped it once more at its end, and that would look like a death.
        signal.signal(number, lambda number, frame: None)
    server.run()
    if not server.started:
        raise CommandError(f"the gateway could not start on {host}:{port}")
