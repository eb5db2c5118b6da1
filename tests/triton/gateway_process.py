"""A real gateway for a test, in a process of its own on a free port, in front of real Triton servers."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import requests

from python_llm_client.local_server import LocalServer, free_ports


@dataclass(frozen=True)
class RunningGateway:
    """Ready for requests."""

    url: str
    process: subprocess.Popen[str]

    def post(self, path: str, body: object, **headers: str) -> requests.Response:
        return requests.post(self.url + path, json=body, headers=headers, timeout=60)

    def get(self, path: str, **headers: str) -> requests.Response:
        return requests.get(self.url + path, headers=headers, timeout=60)


@contextlib.contextmanager
def running_gateway(servers: Sequence[LocalServer | str], log: Path, *options: str) -> Iterator[RunningGateway]:
    """`servers`: real ones, or addresses. Stops it by SIGTERM and checks that it exits with 0 and logged no fault."""
    port = free_ports()[0]
    addresses = [server if isinstance(server, str) else f"127.0.0.1:{server.grpc_port}" for server in servers]
    command = [sys.executable, "-m", "python_llm_client", "gateway", f"--port={port}", *options]
    command += [f"--triton={address}" for address in addresses]
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", log.read_text()
        yield RunningGateway(f"http://127.0.0.1:{port}", process)
        process.terminate()
        assert process.wait(40) == 0, log.read_text()
        assert "Traceback" not in log.read_text(), log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
