"""The gateway that `serve` runs beside tritonserver: a process of its own, so that neither slows the other.

Does not know what a gateway does.
"""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from pathlib import Path

from python_llm_client.errors import CommandError
from python_llm_client.guard import Guard

_END_SECONDS = 5


class GatewayProcess:
    """From its start to its end. It must not outlive us, whatever kills us."""

    def __init__(self, host: str, grpc_port: int, port: int, api_keys: Path | None) -> None:
        """Starts it, in front of the server of this machine at `grpc_port`."""
        # A server that listens everywhere is asked at this machine's own address.
        server = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
        command = [sys.executable, "-m", "python_llm_client", "gateway", f"--triton={server}:{grpc_port}"]
        command += [f"--host={host}", f"--port={port}"]
        command += [f"--api-keys={api_keys}"] if api_keys else []
        # In its own session a Ctrl-C of the terminal reaches us only, and we decide what it means.
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._guard = Guard('kill -s KILL "$0"', str(self._process.pid))

    def is_ready(self, seconds: float) -> bool:
        """Waits so long for it. CommandError when it has ended; it has said on stderr why."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            return False
        if self._process.stdout.readline() == "ready\n":
            return True
        self._process.wait()
        self.check()
        return False

    def check(self) -> None:
        """CommandError when it has ended."""
        status = self._process.poll()
        if status is not None:
            raise CommandError(f"the gateway ended by itself (exit status {status})")

    def drain(self) -> None:
        """Ask it to finish what runs and to exit."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Wait a little, then kill it. Call it once, whatever happened before."""
        if self._process.poll() is None:
            self.drain()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._guard.release()
