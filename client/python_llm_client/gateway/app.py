"""Puts the gateway together: paths, limits, errors, and the life of the connections to the servers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path

import orjson
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from python_llm_client.gateway.access import Access
from python_llm_client.gateway.errors import add_error_handlers
from python_llm_client.gateway.metrics import GatewayMetrics
from python_llm_client.gateway.ollama.routes import ollama_routes
from python_llm_client.gateway.openai.routes import openai_routes
from python_llm_client.gateway.servers import ServerPool
from python_llm_client.gateway.serving import Serving
from python_llm_client.gateway.settings import GatewaySettings

_STATIC = Path(__file__).parent / "static"
_OWN_FILES_ONLY = {"content-security-policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'"}


def create_app(settings: GatewaySettings) -> FastAPI:
    """The ASGI application of one gateway."""
    pool = ServerPool(settings.servers, settings.server_tls)
    metrics = GatewayMetrics()
    serving = Serving(pool, metrics, settings.request_timeout)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await pool.start()
        yield
        await pool.stop()

    # The pages that FastAPI makes of the document load their scripts from elsewhere.
    app = FastAPI(title="python_llm", version=version("python-llm"), lifespan=lifespan, docs_url=None, redoc_url=None)
    app.include_router(openai_routes(serving))
    app.include_router(ollama_routes(serving))

    @app.get("/health", responses={503: {"description": "No Triton server answers."}})
    async def health() -> Response:
        """Whether any Triton server answers, and what is wrong with the others."""
        servers = pool.status()
        ok = "ok" in servers.values()
        body = {"status": "ok" if ok else "unavailable", "servers": servers}
        return Response(orjson.dumps(body), 200 if ok else 503, media_type="application/json")

    @app.get("/metrics", include_in_schema=False)
    async def metrics_page() -> Response:
        return Response(metrics.page(), media_type="text/plain; version=0.0.4")

    # Ollama's clients ask with HEAD whether anybody is there.
    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def chat_page() -> Response:
        return FileResponse(_STATIC / "index.html", headers=_OWN_FILES_ONLY)

    app.mount("/static", StaticFiles(directory=_STATIC), name="static")
    add_error_handlers(app)
    paths = frozenset(app.openapi()["paths"]) | {"/", "/metrics", "/v1/embeddings"}
    app.add_middleware(Access, settings=settings, metrics=metrics, paths=paths)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
        )
    return app
