"""Every error that reaches a user, by whose fault it is.

Does not know Triton: `triton_io` maps each class to a Triton code.
"""


class PythonLLMError(Exception):
    """Base of all errors whose message is written for the user."""


class SettingsError(PythonLLMError):
    """A setting is unknown, malformed or out of range. Raised at load."""


class ModelLoadError(PythonLLMError):
    """The model's files are missing, damaged or of a kind we cannot serve. Raised at load."""


class RequestError(PythonLLMError):
    """Base of the errors that end one request and no other."""


class InvalidRequestError(RequestError):
    """The request itself is wrong: INVALID_ARG. The message says what, what was expected, what came."""


class UnavailableError(RequestError):
    """Queue full, draining, or deadline passed: UNAVAILABLE. The same request may succeed later."""


class CancelledError(RequestError):
    """The client went away or asked to stop: CANCELLED."""


class EngineError(RequestError):
    """Our own fault: INTERNAL."""
