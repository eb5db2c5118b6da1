"""What talks to the server from outside: a library, the `python-llm` command, and a gateway for other protocols.

The library is `Client`, `AsyncClient` and what they give and raise (docs/clients.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Client": "client",
    "AsyncClient": "async_client",
    "Tls": "connection",
    "RetryPolicy": "retry",
    **dict.fromkeys(("Answer", "Choice", "Delta", "Stats", "TokenLogprob", "TokenLogprobs", "Usage"), "answers"),
    **dict.fromkeys(
        (
            "ClientError",
            "ConnectionLostError",
            "DeadlineExceededError",
            "InvalidRequestError",
            "NotFoundError",
            "UnavailableError",
            "UnreachableError",
        ),
        "failures",
    ),
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    """Loads on first use: the command line must not wait for gRPC before it prints its help."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
