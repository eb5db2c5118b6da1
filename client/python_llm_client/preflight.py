"""What can be checked before a server is started: the machine, Python's library, ports, shared memory.

Each check takes the values it judges and raises UsageError. Does not know models.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from python_llm_client.errors import UsageError

MIB = 1 << 20
SHM_NEEDED_MIB = 8
"""Per model instance: a stub takes 1 MiB when it starts, as much again for completing its configuration, then grows."""
SHM_ADVISED_MIB = 64
"""Per model instance, under load."""
_GLIBC = (2, 35)


def check_machine(system: str, machine: str, libc: tuple[str, str]) -> None:
    """The values are those of `platform.system()`, `platform.machine()` and `platform.libc_ver()`."""
    name, version = libc
    if system == "Linux" and machine == "x86_64" and name == "glibc":
        if tuple(int(part) for part in version.split(".")[:2]) >= _GLIBC:
            return
        found = f"glibc {version}"
    else:
        found = f"{system} {machine}" + ("" if name == "glibc" or system != "Linux" else " without glibc")
    raise UsageError(
        f"tritonserver (from nvidia-pytriton) runs on Linux x86_64 with glibc 2.35 or newer, and this is {found}: "
        "run it on such a machine or in a container (Debian 12, Ubuntu 22.04 or newer)"
    )


def check_stub(stub: Path, environ: Mapping[str, str]) -> None:
    """Start Triton's Python stub without arguments: tritonserver would wait for ever for one that cannot start."""
    run = subprocess.run([str(stub)], env=environ, capture_output=True, text=True, timeout=60, check=False)
    # Exit status 1 alone says little: the dynamic loader uses it too, for a symbol version that it lacks.
    if run.returncode == 1 and "Expected 9 arguments" in run.stdout + run.stderr:
        return
    raise UsageError(stub_problem(run.stderr or run.stdout, stub.resolve().parent.name))


def stub_problem(output: str, version: str) -> str:
    """The sentence for what the stub for Python `version` printed instead of starting."""
    if f"libpython{version}" in output:
        return (
            f"Python's shared library libpython{version}.so.1.0 is missing, so Triton's Python stub cannot start: "
            f"install it (Debian, Ubuntu: apt-get install libpython{version}), or use a Python that was built with "
            "--enable-shared"
        )
    detail = output.strip().splitlines()
    return (
        f"Triton's Python stub for Python {version} does not start ({detail[-1] if detail else 'it printed nothing'}): "
        "reinstall nvidia-pytriton, or use another Python"
    )


def check_ports(host: str, ports: Mapping[str, int]) -> None:
    """`ports`: flag ("--http-port") -> port. Each must be free at `host` and be asked for once."""
    seen: dict[int, str] = {}
    for flag, port in ports.items():
        if not 1 <= port <= 65535:
            raise UsageError(f"{flag} must be between 1 and 65535, not {port}")
        if port in seen:
            raise UsageError(f"{seen[port]} and {flag} are both {port}: give each its own port")
        seen[port] = flag
        _check_free(host, port, flag)


def _check_free(host: str, port: int, flag: str) -> None:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"--host {host} is not an address of this machine ({error.strerror})") from None
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UsageError(
                    f"port {port} ({flag}) is taken by another process: stop it, or choose another port with {flag}"
                ) from None
            if error.errno == errno.EACCES:
                raise UsageError(f"port {port} ({flag}) is only for root: choose one above 1023 with {flag}") from None
            raise UsageError(f"cannot listen on {host} port {port} ({flag}): {error.strerror}") from None


def free_shared_memory(folder: Path = Path("/dev/shm")) -> int:
    """Bytes that may still be written in `folder`."""
    try:
        status = os.statvfs(folder)
    except OSError as error:
        raise UsageError(
            f"{folder} is not usable ({error.strerror}), and Triton's Python backend needs it: mount a tmpfs there"
        ) from None
    return status.f_bavail * status.f_frsize


def check_shared_memory(free: int, instances: int) -> str | None:
    """`free` in bytes. UsageError when too little to start; a warning when there is little room to grow, else None."""
    needed, advised = instances * SHM_NEEDED_MIB, instances * SHM_ADVISED_MIB
    have = f"/dev/shm has {free // MIB} MiB free"
    remedy = f"free some, or give the container more (docker run --shm-size={max(256, advised)}m)"
    if free < needed * MIB:
        raise UsageError(f"{have}, and {instances} model instance(s) need {needed} MiB at least: {remedy}")
    if free < advised * MIB:
        return f"{have}; {instances} model instance(s) may grow to {advised} MiB under load: {remedy}"
    return None
