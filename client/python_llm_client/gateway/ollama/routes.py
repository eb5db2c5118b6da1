"""Ollama's paths. Does not know how a model answers: see `serving`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from python_llm_client.gateway.errors import ApiError, error_json
from python_llm_client.gateway.ollama import reply
from python_llm_client.gateway.ollama.schema import ChatRequest, GenerateRequest, ShowRequest
from python_llm_client.gateway.ollama.translate import chat_request, generate_request, model_name
from python_llm_client.gateway.serving import Serving
from python_llm_client.gateway.streaming import parts_response, whole_response
from python_llm_client.request import GenerationRequest


class OllamaError(BaseModel):
    """Every error of the API."""

    error: str


_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": OllamaError, "description": "The request is wrong, unknown, or too much."},
    "5XX": {"model": OllamaError, "description": "No server can answer now."},
}
_OBJECT: dict[str, Any] = {"schema": {"type": "object"}}
_LINES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One object, or with a stream one on each line.",
        "content": {"application/json": _OBJECT, "application/x-ndjson": {"schema": {"type": "string"}}},
    }
}


def ollama_routes(serving: Serving) -> APIRouter:
    """The router of `/api`."""
    router = APIRouter(prefix="/api", responses=_ERRORS)

    @router.post("/chat", responses=_LINES)
    async def chat(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        model = await serving.pool.model(model_name(body.model))
        writer = reply.Writer(body.model, is_chat=True)
        if not body.messages:
            return Response(writer.loaded(), media_type="application/json")
        return await _answer(request, serving, chat_request(body, model), writer)

    @router.post("/generate", responses=_LINES)
    async def generate(body: GenerateRequest, request: Request) -> Response:
        """Answer a prompt."""
        model = await serving.pool.model(model_name(body.model))
        writer = reply.Writer(body.model, is_chat=False)
        if not body.prompt and not body.system:
            return Response(writer.loaded(), media_type="application/json")
        return await _answer(request, serving, generate_request(body, model), writer)

    @router.get("/tags")
    async def tags() -> Response:
        """The models of all servers that answer."""
        return _json({"models": [reply.listed(model) for model in serving.pool.models()]})

    @router.get("/ps")
    async def running() -> Response:
        """The same: models that are served are loaded."""
        return _json({"models": [reply.running(model) for model in serving.pool.models()]})

    @router.post("/show")
    async def show(body: ShowRequest) -> Response:
        """What is known of a model."""
        name = body.model or body.name
        if not name:
            raise ApiError(400, "the parameter 'model' is missing", param="model")
        return _json(reply.shown(await serving.pool.model(model_name(name))))

    @router.get("/version")
    async def version() -> Response:
        """The version of Ollama whose API this follows."""
        return _json({"version": reply.API_VERSION})

    return router


async def _answer(request: Request, serving: Serving, asked: GenerationRequest, writer: reply.Writer) -> Response:
    if not asked.stream:
        return await whole_response(request, _whole(serving, asked, writer))
    return await parts_response(request, _lines(serving, asked, writer), "application/x-ndjson", _error_line)


async def _whole(serving: Serving, asked: GenerationRequest, writer: reply.Writer) -> bytes:
    answer = await serving.ask(asked)
    return writer.last(answer.text, answer.finish_reason, answer.usage, answer.stats)


async def _lines(serving: Serving, asked: GenerationRequest, writer: reply.Writer) -> AsyncGenerator[bytes, None]:
    reason: str | None = None
    async with contextlib.aclosing(serving.responses(asked)) as responses:
        async for deltas in responses:
            for delta in deltas:
                reason = delta.finish_reason or reason
                if delta.usage is not None:
                    yield writer.last(delta.text, reason, delta.usage, delta.stats)
                elif delta.text:
                    yield writer.line(delta.text)


def _error_line(error: ApiError) -> bytes:
    return error_json({"error": str(error)}) + b"\n"


def _json(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
