"""Which requests are under way, by the id that the client gave them: for stop requests.

Triton does not tell a step of an ensemble that the client went away, so clients send a request that says `stop` under
the same id, as with TensorRT-LLM's backend. Does not know tensors or the engine.
"""

from __future__ import annotations

import threading

from python_llm.errors import InvalidRequestError
from python_llm.triton_io.reply import Reply


class RunningRequests:
    """Any thread may call; never blocks for long. An id may be that of several requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_id: dict[str, list[Reply]] = {}

    def add(self, request_id: str, reply: Reply) -> None:
        """An empty id is no id."""
        if request_id:
            with self._lock:
                self._by_id.setdefault(request_id, []).append(reply)

    def remove(self, request_id: str, reply: Reply) -> None:
        with self._lock:
            replies = [other for other in self._by_id.pop(request_id, ()) if other is not reply]
            if replies:
                self._by_id[request_id] = replies

    def stop(self, request_id: str) -> None:
        """Stop every request under way with this id; none is no error, it may just have ended.

        Raises InvalidRequestError for an empty id.
        """
        if not request_id:
            raise InvalidRequestError("a stop request must carry the request id of the request that it is to stop")
        with self._lock:
            replies = list(self._by_id.get(request_id, ()))
        for reply in replies:
            reply.stop()

    def __len__(self) -> int:
        return len(self._by_id)
