"""Runs `python-llm serve` as a child process on free ports, for programs that bring their own server: demo, tests.

Does not know models or requests.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from python_llm_client.errors import CommandError
from python_llm_client.guard import Guard

_STOP_SECONDS = 60


class ServerFailedError(CommandError):
    """The server did not become ready. The message is its own last word; `log` is all that it wrote."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


class LocalServer:
    """A running `serve`, ready. `process` is the command itself; tritonserver is its child."""

    def __init__(self, process: subprocess.Popen[str], ports: tuple[int, int, int], output: Path) -> None:
        self.process = process
        self.http_port, self.grpc_port, self.metrics_port = ports
        self._output = output

    def log(self) -> str:
        """Everything that `serve` and tritonserver wrote to stderr so far."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> int:
        """Ask it to drain, wait, and return its exit status. CommandError when it does not end within a minute."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise CommandError(f"the server did not end within {_STOP_SECONDS} s of SIGTERM and was killed") from None


@contextlib.contextmanager
def start_server(
    *model_repositories: Path,
    models: Sequence[str] | None = None,
    settings: Mapping[str, Mapping[str, str]] | None = None,
    timeout: float = 300.0,
) -> Iterator[LocalServer]:
    """Start `serve` on free ports and yield it when it is ready; stop it on leaving.

    `models`: load only these. `settings`: model -> setting -> value. `timeout` in seconds until ready.
    Raises ServerFailedError when it does not become ready.
    """
    with tempfile.TemporaryDirectory(prefix="python-llm-") as folder:
        output = Path(folder) / "stderr"
        ports = free_ports()
        command = [sys.executable, "-m", "python_llm_client", "serve"]
        command += [f"--model-repository={folder}" for folder in model_repositories]
        command += [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)]
        command += ["--verbose"]
        command += [f"--models={','.join(models)}"] if models else []
        for model, values in (settings or {}).items():
            command += [f"--set={model}.{name}={value}" for name, value in values.items()]
        with output.open("w") as stderr:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        server = LocalServer(process, ports, output)
        guard = Guard('kill -s TERM "$0"', str(process.pid))
        try:
            _wait_until_ready(server, time.monotonic() + timeout)
            yield server
        finally:
            server.stop()
            guard.release()


def free_ports() -> tuple[int, int, int]:
    """Three ports of 127.0.0.1 that nobody listens on now. Another process may take them before they are used."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(3)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        first, second, third = (probe.getsockname()[1] for probe in probes)
        return first, second, third


def _wait_until_ready(server: LocalServer, deadline: float) -> None:
    stdout = server.process.stdout
    assert stdout is not None
    while time.monotonic() < deadline:
        if select.select([stdout], [], [], 0.2)[0]:
            line = stdout.readline()
            if line == "ready\n":
                return
            if not line:
                server.process.wait()
                log = server.log()
                own = [text for text in log.splitlines() if text.startswith("python-llm: ")]
                raise ServerFailedError(own[-1].removeprefix("python-llm: ") if own else "the server died", log)
    raise ServerFailedError("the server did not become ready in time", server.log())
