"""When a failed request may be sent again, and how long to wait before. Does not know what is sent."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from python_llm_client.failures import ClientError, UnavailableError


@dataclass(frozen=True)
class RetryPolicy:
    """Tries again what was refused or never arrived, and nothing of which a token has come."""

    retries: int = 2
    """How often to try again; 0: never."""
    first_delay: float = 0.2
    """Seconds; doubled with each retry, and drawn from [half, whole] so that clients do not come back together."""
    max_delay: float = 5.0

    def delays(self) -> Iterator[float]:
        """Seconds to wait before each retry."""
        delay = self.first_delay
        for _ in range(self.retries):
            yield min(delay, self.max_delay) * random.uniform(0.5, 1.0)
            delay *= 2


def is_safe_to_retry(error: ClientError, *, has_begun: bool) -> bool:
    """`has_begun`: a part of the answer has come already."""
    return isinstance(error, UnavailableError) and not has_begun
