"""One tritonserver child process: how it is started, stopped and cleaned up after.

It must never outlive us, and what it leaves in shared memory when it is killed must go. Does not know models.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class TritonProcess:
    """Owned by the main thread: the kernel ties the child's life to the thread that started it."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        """Start `command` with output to the file `log`. Its Python stubs name their shared memory by our prefix."""
        self._prefix = f"python_llm_{secrets.token_hex(6)}_"
        region = f"--backend-config=python,shm-region-prefix-name={self._prefix}"
        with log.open("wb") as output:
            # In its own session a Ctrl-C of the terminal reaches us only, and we decide what it means.
            self._process = subprocess.Popen(
                [*command, region],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 (no thread runs yet)
            )
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Exit status, or None while it runs."""
        return self._process.poll()

    def drain(self) -> None:
        """Ask it to finish what runs and to exit."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and its stubs at once."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self.remove_shared_memory()

    def remove_shared_memory(self) -> None:
        """Call it when the process is gone: stubs that were killed leave their regions behind."""
        for region in Path("/dev/shm").glob(self._prefix + "*"):
            region.unlink(missing_ok=True)


def _die_with(parent: int) -> Callable[[], None]:
    def in_child() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The parent may have died before the line above.
        if os.getppid() != parent:
            os._exit(1)

    return in_child
