"""Everything that can go wrong with a request, as exceptions that carry Triton's code. Does not know gRPC's types.

A gRPC stream of Triton brings an error's text and not its code. It would bring the code with the metadata
`triton_grpc_error: true`; but with that, Triton 2.51 crashes after some dozen errors (docs/decisions.md). So the code
is found from what was said, and from when.
"""

from __future__ import annotations

from python_llm_client.errors import CommandError

_UNREACHABLE = ("failed to connect", "errors resolving", "DNS resolution failed")
_WENT_AWAY = ("Stream removed", "Socket closed", "Connection reset", "GOAWAY", "Broken pipe")


class ClientError(CommandError):
    """A request failed. `code` is gRPC's name of the reason ("INVALID_ARGUMENT"), or "" when none came."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class InvalidRequestError(ClientError):
    """The request itself is wrong: INVALID_ARGUMENT."""


class NotFoundError(ClientError):
    """The server has no such model: NOT_FOUND."""


class DeadlineExceededError(ClientError):
    """The deadline passed, waiting or running: DEADLINE_EXCEEDED."""


class UnavailableError(ClientError):
    """The server cannot take the request now (its queue is full, the model is being unloaded): UNAVAILABLE."""


class UnreachableError(UnavailableError):
    """No server answers at the address."""


class ConnectionLostError(UnavailableError):
    """The server went away before the answer was complete."""


_CLASSES = {
    "INVALID_ARGUMENT": InvalidRequestError,
    "NOT_FOUND": NotFoundError,
    "DEADLINE_EXCEEDED": DeadlineExceededError,
    "UNAVAILABLE": UnavailableError,
}


_SAID = (
    ("NOT_FOUND", ("Request for unknown model",)),
    ("DEADLINE_EXCEEDED", ("deadline exceeded",)),
    (
        "UNAVAILABLE",
        ("too many requests:", "the model is being unloaded", "the model was unloaded", "Server is stopping"),
    ),
    (
        "INTERNAL",
        (
            "the request could not be taken in",
            "the request failed:",
            "the response could not be sent:",
            "the engine failed in a step",
            "the engine stopped after",
            "the engine of this model has stopped",
            "a step ran out of memory",
            "Failed to process the request",
            "Stub process",
            "Failed to increase the shared memory pool",
        ),
    ),
)
"""How texts begin that Triton, its Python backend and ours say under these codes."""


def code_of(message: str, *, has_begun: bool) -> str:
    """The code of an error that came without one. `has_begun`: a part of the answer had come before.

    All else that a model says before it begins is about the request, and what it says later cannot be.
    """
    for code, beginnings in _SAID:
        if message.startswith(beginnings):
            return code
    return "INTERNAL" if has_begun else "INVALID_ARGUMENT"


def explain(code: str, message: str, url: str, timeout: float | None = None, *, has_begun: bool = False) -> ClientError:
    """The exception for what the server at `url`, or the way to it, said.

    `code`: "" when none came. `timeout`: the request's, in seconds. `has_begun`: a part of the answer had come before.
    """
    # Only the text tells whether it is the way to the server that is UNAVAILABLE.
    if code == "UNAVAILABLE" and any(text in message for text in _UNREACHABLE):
        return UnreachableError(
            f"no server answers at {url}: start one with python-llm serve, or name the HOST:PORT of another's gRPC "
            "endpoint with --url",
            code,
        )
    if code == "UNAVAILABLE" and any(text in message for text in _WENT_AWAY):
        return ConnectionLostError(f"the server at {url} went away before the answer was complete", code)
    if code == "DEADLINE_EXCEEDED" and timeout is not None:
        return DeadlineExceededError(f"the answer took longer than {timeout:g} s and was stopped", code)
    code = code or code_of(message, has_begun=has_begun)
    return _CLASSES.get(code, ClientError)(message, code)
