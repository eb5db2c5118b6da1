"""One tritonserver child process: how it is started, stopped and cleaned up after.

Neither it nor its Python stubs may outlive us, whatever kills us or it; and what they leave in shared memory must go.
Does not know models.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from python_llm_client.guard import Guard

_SHARED_MEMORY = Path("/dev/shm")


class TritonProcess:
    """A process group of its own: tritonserver leads it, its stubs are the members."""

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
            )
        # PR_SET_PDEATHSIG would end tritonserver, but not its stubs: one with a request in flight stays for ever.
        region_names = str(_SHARED_MEMORY / self._prefix)
        self._guard = Guard('kill -s KILL -- "-$0"; rm -f "$1"*', str(self._process.pid), region_names)

    def poll(self) -> int | None:
        """Exit status (negative: the signal that killed it), or None while it runs."""
        # Not reaped before `end`: until then its process group's number belongs to it.
        found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def drain(self) -> None:
        """Ask it to finish what runs and to exit."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Kill what still runs of it, and remove what it left. Call it once, whatever happened before."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for region in _SHARED_MEMORY.glob(self._prefix + "*"):
            region.unlink(missing_ok=True)
        self._guard.release()
