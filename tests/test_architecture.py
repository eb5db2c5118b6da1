"""Who may import whom (docs/architecture.md), and that importing a light room stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BACKEND = ROOT / "backends" / "python_llm"
CLIENT = ROOT / "client" / "python_llm_client"

ALLOWED = {
    "engine": {"errors"},
    "model_files": {"errors"},
    "tokenization": {"errors", "model_files"},
    "runner": {"errors", "model_files", "engine.plan", "engine.sampling", "engine.acceptance"},
    "speculation": {"engine"},
    "triton_io": {"errors", "engine", "tokenization"},
    "loading": {"config", "model_files", "runner", "speculation", "tokenization"},
    "config": {"errors"},
    "errors": set(),
}


def imports(file: Path) -> set[str]:
    """Modules of our own that `file` imports, without the leading package name."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name.removeprefix("python_llm.") for name in found if name.split(".")[0] == "python_llm"}


@pytest.mark.parametrize("room", ALLOWED)
def test_rooms_import_only_what_they_may(room: str) -> None:
    files = list((BACKEND / room).glob("**/*.py")) or [BACKEND / f"{room}.py"]
    for file in files:
        for name in imports(file):
            allowed = {room, *ALLOWED[room]}
            assert any(name == a or name.startswith(a + ".") for a in allowed), f"{file.name} imports {name}"


def test_only_the_door_knows_pb_utils() -> None:
    for file in BACKEND.glob("**/*.py"):
        if "triton_python_backend_utils" in file.read_text(encoding="utf-8"):
            assert file.name == "model.py" or file.parent.name == "triton_io", file


def test_the_client_knows_the_settings_and_nothing_else() -> None:
    for file in CLIENT.glob("**/*.py"):
        assert imports(file) <= {"config", "errors"}, file


@pytest.mark.parametrize(
    "module",
    [
        "python_llm.config",
        "python_llm.tokenization.load",
        "python_llm.loading",
        "python_llm.triton_io.text_models",
        "python_llm_client.cli",
        "python_llm_client.gateway.app",
    ],
)
def test_light_modules_do_not_load_torch_or_transformers(module: str) -> None:
    code = f"import sys, {module}; assert not {{'torch', 'transformers'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def _client_imports(file: Path) -> set[str]:
    """Modules of the client that `file` imports, without the leading package name."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {name.removeprefix("python_llm_client.") for name in found if name.startswith("python_llm_client.")}


LIBRARY = {"answers", "failures", "errors", "request", "responses", "retry", "connection", "client", "async_client"}
GATEWAY_MAY = {
    "gateway/openai": LIBRARY | {"gateway"},
    "gateway/ollama": LIBRARY | {"gateway"},
    "gateway": LIBRARY | {"gateway", "preflight"},
}


@pytest.mark.parametrize("room", GATEWAY_MAY)
def test_the_gateway_knows_the_library_and_not_how_servers_are_started(room: str) -> None:
    for file in (CLIENT / room).glob("*.py"):
        for name in _client_imports(file):
            assert name.split(".")[0] in GATEWAY_MAY[room], f"{file.name} imports {name}"
            # The two APIs do not know each other; what both need lies beside them.
            others = {"gateway/openai": "gateway.ollama", "gateway/ollama": "gateway.openai"}
            assert room not in others or not name.startswith(others[room]), f"{file.name} imports {name}"


def test_the_library_knows_neither_the_gateway_nor_the_command_line() -> None:
    for module in LIBRARY:
        assert _client_imports(CLIENT / f"{module}.py") <= LIBRARY, module
