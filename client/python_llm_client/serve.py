"""`python-llm serve`: starts tritonserver, tells how far it is, says `ready`, and stops it well."""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType

from rich.console import Console

from python_llm_client.errors import CommandError
from python_llm_client.gateway_process import GatewayProcess
from python_llm_client.health import Health
from python_llm_client.launch import DRAIN_SECONDS, LaunchPlan, ServeOptions, prepare
from python_llm_client.progress import LoadProgress
from python_llm_client.server_log import LogReader, last_error, load_events, poll_failures, sentence
from python_llm_client.triton_process import TritonProcess

_POLL_SECONDS = 0.1
_EXIT_SECONDS = 3
"""tritonserver hangs in its own exit when a request is still in flight after the drain."""


def serve(options: ServeOptions, console: Console) -> None:
    """Serve until SIGTERM or SIGINT. `console` is stderr; stdout gets the line `ready` and nothing else.

    Raises UsageError before anything was started, CommandError when serving failed.
    """
    plan = prepare(options, lambda text: _say(console, f"warning: {text}"))
    _say(console, f"serving {', '.join(plan.models)} from {', '.join(map(str, plan.repositories))}")
    _say(console, f"log: {plan.log}")
    _Supervisor(plan, options, console).run()


class _Supervisor:
    """One tritonserver from its start to its end. Runs in the main thread, as signal handlers do."""

    def __init__(self, plan: LaunchPlan, options: ServeOptions, console: Console) -> None:
        """Starts the server."""
        self._plan = plan
        self._options = options
        self._console = console
        self._health = Health(options.host, options.http_port)
        self._loading_log = ""
        self._stops = 0
        """Signals that asked us to stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._process = TritonProcess(plan.command, plan.environ, plan.log)
        self._reader = LogReader(plan.log)
        self._gateway: GatewayProcess | None = None

    def run(self) -> None:
        try:
            with LoadProgress(self._console, self._plan.models) as progress:
                ready = self._wait_until_ready(progress)
            if ready and self._start_gateway():
                o = self._options
                at = f"HTTP {o.host}:{o.http_port}, gRPC {o.host}:{o.grpc_port}, metrics {o.host}:{o.metrics_port}"
                if o.openai_port is not None:
                    at += f", OpenAI and Ollama http://{o.host}:{o.openai_port}"
                _say(self._console, at)
                print("ready", flush=True)
                self._wait_until_gone()
        finally:
            if self._gateway is not None:
                self._gateway.end()
            self._process.end()
            self._reader.close()

    def _start_gateway(self) -> bool:
        """False: asked to stop before it was ready. CommandError when it does not start."""
        o = self._options
        if o.openai_port is None:
            return True
        self._gateway = GatewayProcess(o.host, o.grpc_port, o.openai_port, o.api_keys)
        while not self._stops:
            if self._gateway.is_ready(_POLL_SECONDS):
                return True
        return False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stops += 1

    def _wait_until_ready(self, progress: LoadProgress) -> bool:
        """False: asked to stop before. CommandError when a model fails or the server ends."""
        while not self._stops:
            status = self._process.poll()
            text = self._pump()
            self._loading_log += text
            for event in load_events(text):
                progress.event(event)
            progress.tick()
            if status is not None:
                said = last_error(self._loading_log)
                raise CommandError(
                    f"tritonserver ended while it started ({_ending(status)})"
                    + (f": {said}" if said else "")
                    + f"\nThe full log is {self._plan.log}"
                )
            # It answers only after it has tried to load every model.
            states = self._health.models()
            if states is not None:
                self._check_loaded({s.name: s.reason for s in states if s.state in {"", "UNAVAILABLE"}})
                if self._health.ready():
                    return True
            time.sleep(_POLL_SECONDS)
        return False

    def _check_loaded(self, failed: dict[str, str]) -> None:
        reasons = poll_failures(self._loading_log) | {name: reason for name, reason in failed.items() if reason}
        lines = [
            f"the model {name} did not load: {sentence(reasons.get(name, ''))}"
            for name in self._plan.models
            if name in failed
        ]
        if lines:
            raise CommandError("\n".join([*lines, f"The full log is {self._plan.log}"]))

    def _wait_until_gone(self) -> None:
        cut_at: float | None = None
        while (status := self._process.poll()) is None:
            self._pump()
            if self._stops and cut_at is None:
                cut_at = time.monotonic() + DRAIN_SECONDS + _EXIT_SECONDS
                _say(self._console, f"stopping: running requests have {DRAIN_SECONDS} s to finish (again: stop now)")
                if self._gateway is not None:
                    self._gateway.drain()
                self._process.drain()
            if self._gateway is not None and not self._stops:
                self._gateway.check()
            if self._stops > 1:
                raise CommandError("stopped at once: running requests were cut")
            if cut_at is not None and time.monotonic() > cut_at:
                break
            time.sleep(_POLL_SECONDS)
        self._pump()
        if cut_at is None:
            assert status is not None
            raise CommandError(f"tritonserver ended by itself ({_ending(status)})\nThe full log is {self._plan.log}")
        if status != 0:
            raise CommandError(
                f"requests still ran after {DRAIN_SECONDS} s and were cut\nThe full log is {self._plan.log}"
            )

    def _pump(self) -> str:
        text = self._reader.new_text()
        if self._options.verbose:
            sys.stderr.write(text)
        return text


def _ending(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _say(console: Console, text: str) -> None:
    console.print(f"python-llm: {text}", markup=False, highlight=False, soft_wrap=True)
