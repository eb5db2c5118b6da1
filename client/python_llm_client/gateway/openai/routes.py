"""OpenAI's paths. Does not know how a model answers: see `servers`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from python_llm_client.answers import Answer, Delta, Usage
from python_llm_client.gateway.errors import ApiError
from python_llm_client.gateway.merge import merged
from python_llm_client.gateway.openai import answers_schema as bodies
from python_llm_client.gateway.openai import reply
from python_llm_client.gateway.openai.chunks import ChatChunks, CompletionChunks, error_event
from python_llm_client.gateway.openai.schema import ChatCompletionRequest, CompletionRequest, Generation
from python_llm_client.gateway.openai.translate import chat_request, completion_requests, echoes
from python_llm_client.gateway.servers import ServedModel
from python_llm_client.gateway.serving import Serving
from python_llm_client.gateway.streaming import parts_response, whole_response

_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": bodies.ErrorBody, "description": "The request is wrong, unknown, or too much."},
    "5XX": {"model": bodies.ErrorBody, "description": "No server can answer now."},
}
_EVENTS = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
"""Of a stream: `data: {...}` for each chunk, and `data: [DONE]`."""


def openai_routes(serving: Serving) -> APIRouter:
    """The router of `/v1`."""
    router = APIRouter(prefix="/v1", responses=_ERRORS)

    @router.post("/chat/completions", responses={200: {"model": bodies.ChatCompletion, **_EVENTS}})
    async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
        """Answer a conversation."""
        model = await serving.pool.model(body.model)
        asked = chat_request(body, model)
        heading = reply.Heading("chatcmpl", model.name)
        if body.stream:
            writer = ChatChunks(heading, include_usage=_include_usage(body))
            events = _events([serving.responses(asked)], lambda delta, _: writer.parts(delta), writer.last)
            return await parts_response(request, events, "text/event-stream", error_event)

        async def whole() -> bytes:
            return orjson.dumps(reply.chat_completion(heading, await serving.ask(asked)))

        return await whole_response(request, whole())

    @router.post("/completions", responses={200: {"model": bodies.Completion, **_EVENTS}})
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Continue a text."""
        model = await serving.pool.model(body.model)
        asked = completion_requests(body, model)
        heading = reply.Heading("cmpl", model.name)
        n = body.n or 1
        if body.stream:
            writer = CompletionChunks(heading, echoes(body), n, include_usage=_include_usage(body))
            events = _events([serving.responses(one) for one in asked], writer.parts, writer.last)
            return await parts_response(request, events, "text/event-stream", error_event)

        async def whole() -> bytes:
            answers = await _all([serving.ask(one) for one in asked])
            return orjson.dumps(reply.completion(heading, answers, echoes(body), n))

        return await whole_response(request, whole())

    @router.get("/models", responses={200: {"model": bodies.ModelList}})
    async def list_models() -> Response:
        """The models of all servers that answer."""
        return _json({"object": "list", "data": [_model(model) for model in serving.pool.models()]})

    @router.get("/models/{model}", responses={200: {"model": bodies.ModelBody}})
    async def retrieve_model(model: str) -> Response:
        """One model."""
        return _json(_model(await serving.pool.model(model)))

    @router.post("/embeddings", include_in_schema=False)
    async def create_embeddings() -> Response:
        message = "none of this server's models makes embeddings"
        raise ApiError(404, message, code="model_not_found", param="model")

    return router


async def _events(
    answers: Sequence[AsyncGenerator[list[Delta], None]],
    write: Callable[[Delta, int], bytes],
    last: Callable[[list[Usage]], bytes],
) -> AsyncGenerator[bytes, None]:
    spent: list[Usage] = []
    async with contextlib.aclosing(merged(answers)) as parts:
        async for prompt, deltas in parts:
            spent += [delta.usage for delta in deltas if delta.usage is not None]
            if event := b"".join([write(delta, prompt) for delta in deltas]):
                yield event
    yield last(spent)


async def _all(work: list[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """All results; when one fails or nobody waits any more, the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _include_usage(body: Generation) -> bool:
    return bool(body.stream_options and body.stream_options.include_usage)


def _model(model: ServedModel) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": model.since, "owned_by": "triton"}


def _json(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
