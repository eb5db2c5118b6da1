"""The only place beside model.py that touches pb_utils: arrays <-> tensors, errors -> codes, senders, sweeper.

pb_utils exists only inside Triton's stub, and some of its names only after model.py has been imported: hence the late
imports. Does not know what the tensors mean.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from python_llm.errors import (
    CancelledError,
    InvalidRequestError,
    RequestError,
    UnavailableError,
)
from python_llm.triton_io.reply import Batch, Reply

_NUM_SENDERS = 4
_SWEEP_INTERVAL_S = 0.02
_ERROR_DELAY_S = 0.02
_SWEEP_SHARE = 0.05
"""Largest share of a core that the sweeper may take."""
_LARGE_RESPONSE = 64 << 10
"""Bytes; smaller ones fit into what is left of Triton's shared memory pool, which grows by 1 MiB."""


def read_inputs(triton_request: Any) -> dict[str, np.ndarray]:
    """Input name -> array of every input that the request brings."""
    return {tensor.name(): tensor.as_numpy() for tensor in triton_request.inputs()}


def read_parameters(triton_request: Any) -> dict[str, Any]:
    """The request parameters: some versions of Triton give them as a JSON text."""
    parameters = triton_request.parameters()
    return dict(json.loads(parameters) if isinstance(parameters, str) else parameters)


def response_of(outputs: Mapping[str, np.ndarray]) -> Any:
    import triton_python_backend_utils as pb_utils

    tensors = [pb_utils.Tensor(name, array) for name, array in outputs.items()]
    return pb_utils.InferenceResponse(output_tensors=tensors)


def error_response(error: Exception) -> Any:
    """A response that says `error`, under the code of its class."""
    import triton_python_backend_utils as pb_utils

    triton_error = pb_utils.TritonError(str(error), _code(error))
    return pb_utils.InferenceResponse(output_tensors=[], error=triton_error)


def log_error(message: str) -> None:
    import triton_python_backend_utils as pb_utils

    pb_utils.Logger.log_error(message)


def log_warning(message: str) -> None:
    import triton_python_backend_utils as pb_utils

    pb_utils.Logger.log_warn(message)


class Responder:
    """Sends the responses of one Triton request; the last one carries the FINAL flag, whatever happens."""

    def __init__(self, triton_request: Any) -> None:
        self._sender = triton_request.get_response_sender()
        self._is_finished = False
        self._lock = threading.Lock()
        """The FINAL flag frees what `is_cancelled` looks at; together they crash the whole server."""

    def is_cancelled(self) -> bool:
        with self._lock:
            return not self._is_finished and bool(self._sender.is_cancelled())

    def send_outputs(self, outputs: Mapping[str, np.ndarray], *, is_last: bool) -> None:

        if self._is_finished:
            return
        response = response_of(outputs)
        if is_last and _num_bytes(outputs) > _LARGE_RESPONSE:
            # Shared memory may not suffice, and Triton closes its sender with the final flag even if sending then
            # fails: no error could be sent any more, and the client would wait for ever.
            self._send(response, is_last=False)
            response = None
        self._send(response, is_last)

    def send_error(self, error: Exception) -> None:
        """Ends the request with `error`, under the code of its class."""

        if self._is_finished:
            return
        self._send(error_response(error), is_last=True)

    def _send(self, response: Any, is_last: bool) -> None:
        import triton_python_backend_utils as pb_utils

        if is_last:
            with self._lock:
                self._is_finished = True
                final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                if response is None:
                    self._sender.send(flags=final)
                else:
                    self._sender.send(response, flags=final)
        else:
            self._sender.send(response)


def _num_bytes(outputs: Mapping[str, np.ndarray]) -> int:
    arrays = outputs.values()
    return sum(sum(map(len, array)) if array.dtype == np.object_ else array.nbytes for array in arrays)


def _code(error: Exception) -> int:
    import triton_python_backend_utils as pb_utils

    codes = pb_utils.TritonError
    if isinstance(error, InvalidRequestError):
        return codes.INVALID_ARG
    if isinstance(error, UnavailableError):
        return codes.UNAVAILABLE
    if isinstance(error, CancelledError):
        return codes.CANCELLED
    return codes.INTERNAL


class ErrorSender:
    """Sends the errors that end requests, a moment later than they arose, from a thread of its own.

    Triton 2.51 does not bear errors that come too early. While it still hands the request over, it can crash, if the
    client is a gRPC stream that asks for error codes (`triton_grpc_error`): 1 in about 40 did, none of 1600 that came
    2 ms later. While a step of an ensemble still works on an earlier response, it loses track of the ensemble's
    request, and the ensemble never unloads: 5 of 5 did, none of 30 that came 20 ms later.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[float, Responder, RequestError] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="error-sender", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, responder: Responder, error: RequestError) -> None:
        self._queue.put((time.monotonic() + _ERROR_DELAY_S, responder, error))

    def stop(self) -> None:
        """Send what is still queued, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            due, responder, error = item
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                responder.send_error(error)
            except Exception as second:
                log_error(f"an error could not be sent: {type(second).__name__}: {second}")


class Face(Protocol):
    """Words the responses of one user request."""

    def outputs(self, batch: Batch) -> Mapping[str, np.ndarray]:
        """Output name -> array; empty, before the last batch: nothing to send now."""
        ...


class Delivery:
    """One user request on its way back: the reply that gathers, the face that words it, the sender."""

    def __init__(
        self, reply: Reply, face: Face, responder: Responder, errors: ErrorSender, on_end: Callable[[], None]
    ) -> None:
        """`on_end` is called once, when the last response has been handed over."""
        self.reply = reply
        self.responder = responder
        self._face = face
        self._errors = errors
        self._on_end = on_end
        self._failed = False

    def send(self, batch: Batch) -> None:
        try:
            if self._failed:
                return
            if batch.error is not None:
                self._errors.send(self.responder, batch.error)
            elif (outputs := self._face.outputs(batch)) or batch.is_last:
                self.responder.send_outputs(outputs, is_last=batch.is_last)
        finally:
            if batch.is_last:
                self._on_end()

    def fail(self, error: RequestError) -> None:
        """End the request with `error`; nothing else is sent from now on: what was lost would be missing before it."""
        self._failed = True
        self._errors.send(self.responder, error)
        self.reply.cancel()


class SenderPool:
    """Threads that send responses, so that neither a slow response nor the server's cost of one holds up the engine."""

    def __init__(self) -> None:
        self._ready: queue.SimpleQueue[Delivery | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"sender-{i}", daemon=True) for i in range(_NUM_SENDERS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def schedule(self, delivery: Delivery) -> None:
        self._ready.put(delivery)

    def stop(self) -> None:
        """Send what is still queued, then end the threads."""
        for _ in self._threads:
            self._ready.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (delivery := self._ready.get()) is not None:
            while (batch := delivery.reply.take()) is not None:
                try:
                    delivery.send(batch)
                except Exception as error:
                    self._give_up(delivery, error)

    def _give_up(self, delivery: Delivery, error: Exception) -> None:
        log_error(f"a response could not be sent: {type(error).__name__}: {error}")
        delivery.fail(RequestError(f"the response could not be sent: {error}"))


class Sweeper:
    """Polls which clients went away (there is no callback) and stops their requests.

    Owner of the list of open deliveries: its own thread; others leave new ones in the inbox.
    """

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Delivery | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sweeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def watch(self, delivery: Delivery) -> None:
        self._inbox.put(delivery)

    def stop(self) -> None:
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        watched: list[Delivery] = []
        next_sweep = 0.0
        while True:
            try:
                wait = max(0.0, next_sweep - time.monotonic()) if watched else None
                new = self._inbox.get(timeout=wait)
                if new is None:
                    return
                watched.append(new)
            except queue.Empty:
                pass
            started = time.monotonic()
            if started >= next_sweep:
                watched = [d for d in watched if not d.reply.closed and not self._stopped(d)]
                ended = time.monotonic()
                next_sweep = ended + max(_SWEEP_INTERVAL_S, (ended - started) / _SWEEP_SHARE)

    def _stopped(self, delivery: Delivery) -> bool:
        if not delivery.responder.is_cancelled():
            return False
        delivery.reply.cancel()
        return True
