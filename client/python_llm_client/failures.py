"""Everything that can go wrong with a request, as exceptions that carry Triton's code. Does not know gRPC's types."""

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


def explain(code: str, message: str, url: str, timeout: float | None = None) -> ClientError:
    """The exception for what the server at `url`, or the way to it, said. `timeout`: the request's, in seconds."""
    # A model may answer UNAVAILABLE too (its queue is full): only the text tells who said it.
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
    # The backend has no code for it, and Triton itself gives none at all for a model that is not there.
    if code == "UNAVAILABLE" and message.startswith("deadline exceeded"):
        code = "DEADLINE_EXCEEDED"
    elif not code and "Request for unknown model" in message:
        code = "NOT_FOUND"
    elif not code and "unexpected inference input" in message:
        code = "INVALID_ARGUMENT"
    return _CLASSES.get(code, ClientError)(message, code)
