"""Finds the real tritonserver inside the installed nvidia-pytriton wheel, without importing pytriton.

Does not know models, ports or the backend of this project.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from python_llm_client.errors import UsageError


@dataclass(frozen=True)
class TritonWheel:
    """The folder `pytriton/tritonserver` of the wheel, and where things lie in it."""

    folder: Path

    @property
    def server(self) -> Path:
        return self.folder / "bin" / "tritonserver"

    @property
    def python_backend(self) -> Path:
        return self.folder / "backends" / "python"

    def python_versions(self) -> list[str]:
        """The Python versions ("3.11") that the wheel holds a stub for, oldest first."""
        stubs = self.folder.glob("python_backend_stubs/*/triton_python_backend_stub")
        return sorted((stub.parent.name for stub in stubs), key=lambda v: [int(part) for part in v.split(".")])

    def stub(self, version: str) -> Path:
        """The stub process for Python `version` ("3.11"). UsageError when the wheel has none."""
        known = self.python_versions()
        if version not in known:
            raise UsageError(
                f"this is Python {version}, but nvidia-pytriton has Triton's Python stub only for "
                f"{', '.join(known) or 'no version'}: make the virtual environment with one of those"
            )
        return self.folder / "python_backend_stubs" / version / "triton_python_backend_stub"


def find_wheel() -> TritonWheel:
    """Raises UsageError when nvidia-pytriton is not installed, or without its server."""
    spec = importlib.util.find_spec("pytriton")
    for location in (spec and spec.submodule_search_locations) or ():
        wheel = TritonWheel(Path(location) / "tritonserver")
        if wheel.server.is_file():
            return wheel
    raise UsageError(
        "nvidia-pytriton, which brings the tritonserver binary, is not installed in this Python environment: "
        "pip install nvidia-pytriton==0.7.0"
    )
