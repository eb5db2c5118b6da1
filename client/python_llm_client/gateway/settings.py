"""What a gateway is told at its start."""

from __future__ import annotations

from dataclasses import dataclass

from python_llm_client.connection import Tls
from python_llm_client.gateway.keys import ApiKey


@dataclass(frozen=True)
class GatewaySettings:
    """Of one gateway process."""

    servers: tuple[str, ...] = ("127.0.0.1:8001",)
    """gRPC endpoints of Triton servers."""
    server_tls: Tls | None = None
    """How to encrypt the way to them; None: not at all."""
    keys: tuple[ApiKey, ...] = ()
    """Who may ask; none: everybody."""
    max_concurrent: int = 256
    """Requests for text under way at once, over all keys."""
    max_body_bytes: int = 8 << 20
    request_timeout: float = 600.0
    """Seconds for one answer, waiting included."""
    cors_origins: tuple[str, ...] = ()
    """Web pages of these origins may call; none: only our own."""
