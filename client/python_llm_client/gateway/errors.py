"""Errors of the gateway, in the form of the API that was called.

OpenAI: `{"error": {"message", "type", "param", "code"}}`. Ollama: `{"error": "message"}`.
"""

from __future__ import annotations

import json
import logging
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from python_llm_client.failures import (
    ClientError,
    DeadlineExceededError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)

_LOG = logging.getLogger("python_llm.gateway")
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80
_TYPES = {401: "authentication_error", 404: "not_found_error", 413: "invalid_request_error", 429: "rate_limit_error"}
RETRY_SECONDS = 1
_FAULTS_LOOKED_AT = 8


class ApiError(Exception):
    """Ends a request with an HTTP status of 400 or more."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def openai_body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self, path: str) -> Response:
        body = {"error": str(self)} if path.startswith("/api/") else self.openai_body()
        return Response(error_json(body), self.status, self.headers, "application/json")


def error_json(body: dict[str, Any]) -> bytes:
    """Not by orjson: an error may show what came, and that need not be text that UTF-8 can say."""
    return json.dumps(body).encode()


def api_error(error: ClientError) -> ApiError:
    """What a failure of the way to the model is to a client of the gateway."""
    message = str(error)
    if isinstance(error, InvalidRequestError):
        return ApiError(400, message)
    if isinstance(error, NotFoundError):
        return ApiError(404, message, code="model_not_found", param="model")
    if isinstance(error, DeadlineExceededError):
        return ApiError(504, message, code="deadline_exceeded")
    if isinstance(error, UnavailableError):
        return ApiError(503, message, code="unavailable", headers={"retry-after": str(RETRY_SECONDS)})
    return ApiError(500, message)


def add_error_handlers(app: FastAPI) -> None:
    """From here on every error of `app` has the form of its API."""

    def on_api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return error.response(request.url.path)

    def on_client_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ClientError)
        return api_error(error).response(request.url.path)

    def on_invalid_body(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return _invalid_body(error.errors()).response(request.url.path)

    def on_http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        method_and_path = f"{request.method} {request.url.path}"
        what = {404: f"there is no {method_and_path} here", 405: f"{method_and_path} is not allowed"}
        message = what.get(error.status_code, str(error.detail))
        return ApiError(error.status_code, message, headers=error.headers).response(request.url.path)

    def on_fault(request: Request, error: Exception) -> Response:
        _LOG.error("%s failed", request.url.path, exc_info=error)
        return ApiError(500, f"the gateway failed: {type(error).__name__}").response(request.url.path)

    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(ClientError, on_client_error)
    app.add_exception_handler(RequestValidationError, on_invalid_body)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, on_fault)


def _invalid_body(faults: Sequence[Any]) -> ApiError:
    """The first fault of a body, with those of the next few that belong to the same parameter."""
    first = faults[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {first.get('ctx', {}).get('error', first['msg'])}")
    if isinstance(first.get("input"), bytes):
        return ApiError(400, "the body must be sent with content-type: application/json")
    param = _place(first["loc"])
    if first["type"] == "missing":
        what = f"the parameter {param!r} is missing" if param else "the body must be a JSON object; none came"
        return ApiError(400, what, param=param or None)
    if first["type"] in {"unknown", "unsupported", "inconsistent"}:
        param = first["ctx"]["param"]
        return ApiError(400, first["msg"], code=first["type"] + "_parameter", param=param)
    said = list(dict.fromkeys(f["msg"] for f in faults[:_FAULTS_LOOKED_AT] if _place(f["loc"]).startswith(param)))[:3]
    subject = param or "the body"
    return ApiError(400, f"{subject}: {'; or: '.join(said)}; got {_REPR.repr(first.get('input'))}", param=param or None)


def _place(loc: Sequence[Any]) -> str:
    """`("body", "messages", 0, "role")` -> "messages[0].role". Names of a union's branches are left out."""
    place = ""
    for part in loc[1:]:
        if isinstance(part, int):
            place += f"[{part}]"
        elif part.isidentifier() and part not in {"str", "int", "float", "bool"}:
            place += f".{part}" if place else part
    return place
