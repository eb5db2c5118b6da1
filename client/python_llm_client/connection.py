"""Where a Triton server is and how to reach it. Does not know requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Tls:
    """Encrypts the connection. Paths of PEM files; None: the system's certificates, and no own one."""

    root_certificates: Path | None = None
    private_key: Path | None = None
    certificate_chain: Path | None = None


@dataclass(frozen=True)
class Endpoint:
    """The gRPC endpoint `url` ("host:port") of a server."""

    url: str = "127.0.0.1:8001"
    tls: Tls | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every call, for example {"authorization": "Bearer ..."}."""

    def client_arguments(self) -> dict[str, Any]:
        """Arguments of tritonclient's InferenceServerClient."""
        if self.tls is None:
            return {"url": self.url}
        paths = {
            "root_certificates": self.tls.root_certificates,
            "private_key": self.tls.private_key,
            "certificate_chain": self.tls.certificate_chain,
        }
        return {"url": self.url, "ssl": True, **{name: str(path) for name, path in paths.items() if path is not None}}

    def call_headers(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.headers.items()}
