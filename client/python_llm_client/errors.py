"""The errors that the command line prints as one line. Knows neither Triton nor the terminal."""

from __future__ import annotations


class CommandError(Exception):
    """Ends the command. The message is for the user: what was wrong, what was expected, what to do.

    `exit_code` is 2 for wrong usage or a machine that is not set up, 1 for what failed while running.
    """

    exit_code = 1


class UsageError(CommandError):
    """An option, a file or the machine is not as the command needs it; nothing was started."""

    exit_code = 2
