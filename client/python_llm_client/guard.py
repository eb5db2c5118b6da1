"""A tiny shell that cleans up after us when we die without a word (SIGKILL, out of memory)."""

from __future__ import annotations

import subprocess


class Guard:
    """From construction to `release`: if this process ends in between, however it ends, the script runs."""

    def __init__(self, script: str, *arguments: str) -> None:
        """`script` is for /bin/sh, with `arguments` as $0, $1, ..."""
        # `read` fails when its input ends, and that is when the kernel closes our end of the pipe.
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", f"read -r _ || {{ {script}; }}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def release(self) -> None:
        """All is well: the script will not run."""
        self._shell.communicate(b"released\n")
