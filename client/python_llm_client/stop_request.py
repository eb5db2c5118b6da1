"""Stops a generation that runs inside an ensemble, by the id that its request was sent with.

Triton does not tell a step of an ensemble that the client went away, so whoever leaves must say so. Does not know what
the request asked for, nor its stream.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping

import numpy as np
import tritonclient.grpc as triton

from python_llm_client.connection import Endpoint, Tls


def stop_generation(
    url: str,
    model: str,
    request_id: str,
    *,
    tls: Tls | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 5.0,
) -> bool:
    """Stop the requests of `model` that were sent with `request_id`.

    Their streams then end without error, with what they have and the finish reason "cancelled": read them to their end.
    `url`, `tls` and `headers` are those of a `Client`.
    True: the model has taken note; also when there is no such request (any more). False: nobody answered within
    `timeout` seconds, or the model takes no stop requests. Never raises, so that it can be called while leaving.
    Needs a connection of its own: the one of the request may be broken, which can be why its owner leaves.
    """
    if not request_id:
        raise ValueError("the request had no id, so it cannot be stopped")
    endpoint = Endpoint(url, tls, dict(headers or {}))
    answers: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    try:
        with triton.InferenceServerClient(**endpoint.client_arguments()) as connection:
            metadata = connection.get_model_metadata(model, headers=endpoint.call_headers(), client_timeout=timeout)
            shape = next((list(tensor.shape) for tensor in metadata.inputs if tensor.name == "stop"), None)
            if shape is None:
                return False
            stop = triton.InferInput("stop", shape, "BOOL")
            stop.set_data_from_numpy(np.ones(shape, dtype=np.bool_))
            connection.start_stream(
                lambda result, error: answers.put(error), stream_timeout=timeout, headers=endpoint.call_headers()
            )
            try:
                connection.async_stream_infer(model, [stop], request_id=request_id)
                return answers.get(timeout=timeout) is None
            finally:
                connection.stop_stream()
    except (triton.InferenceServerException, queue.Empty):
        return False
