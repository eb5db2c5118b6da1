"""The models of an ensemble that need no weights: tokenizer and detokenizer, as Triton calls them.

They answer in the thread that asks. Does not know how text and ids become each other.
"""

from __future__ import annotations

from typing import Any

from python_llm.errors import EngineError, RequestError
from python_llm.tokenization.tokenizer import Tokenizer
from python_llm.triton_io.bridge import (
    ErrorSender,
    Responder,
    error_response,
    log_error,
    read_inputs,
    read_parameters,
    response_of,
)
from python_llm.triton_io.detokenizer_face import detokenize
from python_llm.triton_io.tokenizer_face import tokenize


class TokenizerModel:
    """A decoupled model that answers each request once."""

    def __init__(self, tokenizer: Tokenizer, max_model_len: int | None) -> None:
        """`max_model_len`: tokens, of the model that gets the ids; None: not known."""
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._errors = ErrorSender()
        self._errors.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            responder = Responder(request)
            try:
                wanted = request.requested_output_names()
                outputs = tokenize(read_inputs(request), self._tokenizer, self._max_model_len, wanted)
            except Exception as error:
                self._errors.send(responder, _for_the_user(error))
            else:
                responder.send_outputs(outputs, is_last=True)

    def stop(self) -> None:
        self._errors.stop()


class DetokenizerModel:
    """A model that is not decoupled."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            return response_of(detokenize(read_inputs(request), read_parameters(request), self._tokenizer))
        except Exception as error:
            return error_response(_for_the_user(error))

    def stop(self) -> None:
        """Nothing runs on."""


def _for_the_user(error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    log_error(f"a request failed: {type(error).__name__}: {error}")
    return EngineError(f"the request failed: {type(error).__name__}: {error}")
