"""Turns what the user asked `serve` for into a command that may be started, or says what stands in its way."""

from __future__ import annotations

import json
import os
import platform
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from python_llm.config import OVERRIDES_VARIABLE
from python_llm_client import preflight, repository
from python_llm_client.backend_directory import cache_folder, compose, package_folder
from python_llm_client.errors import UsageError
from python_llm_client.gateway.keys import read_keys
from python_llm_client.triton_wheel import find_wheel

DRAIN_SECONDS = 25
"""How long running requests may take to finish after SIGTERM: below the 30 s that Kubernetes grants."""


@dataclass(frozen=True)
class ServeOptions:
    """What the user asked for. Empty `repositories`: the default ones; empty `models`: all."""

    repositories: list[Path] = field(default_factory=list)
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    models: list[str] = field(default_factory=list)
    assignments: list[str] = field(default_factory=list)
    """`MODEL.SETTING=VALUE`"""
    openai_port: int | None = None
    """Of the gateway; None: no gateway."""
    api_keys: Path | None = None
    """The gateway's key file."""
    verbose: bool = False


@dataclass(frozen=True)
class LaunchPlan:
    """A server that may be started."""

    command: list[str]
    environ: dict[str, str]
    log: Path
    models: list[str]
    repositories: list[Path]


def prepare(options: ServeOptions, warn: Callable[[str], None]) -> LaunchPlan:
    """Check the machine, the repositories and the ports, and compose the backend directory. Raises UsageError.

    `warn` takes a sentence about what is allowed and may go wrong later.
    """
    preflight.check_machine(platform.system(), platform.machine(), platform.libc_ver())
    package = package_folder()
    folders = [p.absolute() for p in options.repositories] or repository.default_repositories(Path.cwd(), package)
    there = repository.read_repositories(folders)
    selected = repository.select(there, options.models)
    overrides = repository.parse_overrides(options.assignments, selected)
    repository.check_settings(selected.values(), overrides)

    wheel = find_wheel()
    stub = wheel.stub(f"{sys.version_info.major}.{sys.version_info.minor}")
    ports = {
        "--http-port": options.http_port,
        "--grpc-port": options.grpc_port,
        "--metrics-port": options.metrics_port,
    }
    gateway_port = {} if options.openai_port is None else {"--openai-port": options.openai_port}
    preflight.check_ports(options.host, {**ports, **gateway_port})
    if options.api_keys is not None:
        if options.openai_port is None:
            raise UsageError("--api-keys is for the gateway: name its port with --openai-port")
        read_keys(options.api_keys)
    instances = sum(model.instances for model in selected.values())
    warning = preflight.check_shared_memory(preflight.free_shared_memory(), instances)
    if warning:
        warn(warning)

    cache = cache_folder(os.environ)
    backends = compose(cache, wheel, stub, package)
    environ = server_environment(os.environ, Path(sys.executable).parent, sysconfig.get_config_var("LIBDIR"), overrides)
    preflight.check_stub(backends / "python" / stub.name, environ)
    log = cache / "logs" / f"serve-{options.http_port}.log"
    log.parent.mkdir(exist_ok=True)
    command = [
        str(wheel.server),
        *(f"--model-repository={folder}" for folder in folders),
        f"--backend-directory={backends}",
        # Explicit mode lets the repository API load and unload models later.
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in (options.models or ["*"])),
        # So that the index tells why a model failed; we end the server then.
        "--exit-on-error=false",
        f"--exit-timeout-secs={DRAIN_SECONDS}",
        *(f"--{kind}-address={options.host}" for kind in ("http", "grpc", "metrics")),
        *(f"{flag}={port}" for flag, port in ports.items()),
    ]
    return LaunchPlan(command, environ, log, list(selected), folders)


def server_environment(
    inherited: Mapping[str, str], python_bin: Path, library_folder: str | None, overrides: Mapping[str, object]
) -> dict[str, str]:
    """The environment of tritonserver, whose stubs find this Python by PATH and its library by LD_LIBRARY_PATH."""
    if not (python_bin / "python3").exists():
        raise UsageError(
            f"{python_bin} holds no python3, by which Triton finds this Python: "
            "run python-llm from a virtual environment (python3 -m venv)"
        )
    environ = dict(inherited)
    environ["PATH"] = os.pathsep.join([str(python_bin), environ.get("PATH", os.defpath)])
    libraries = [library_folder, environ.get("LD_LIBRARY_PATH")]
    environ["LD_LIBRARY_PATH"] = os.pathsep.join(folder for folder in libraries if folder)
    environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # The command line alone decides: what another server left in the environment must not leak in.
    environ.pop(OVERRIDES_VARIABLE, None)
    if overrides:
        environ[OVERRIDES_VARIABLE] = json.dumps(overrides)
    return environ
