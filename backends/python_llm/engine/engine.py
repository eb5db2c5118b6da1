"""The loop: plan -> draft -> execute -> commit -> emit.

One thread owns every request, page and plan. Other threads only leave commands in the inbox: `submit`, `cancel`
and `finish` return at once. Does not know the model, the tokenizer, or Triton.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from python_llm.engine.blocks import BlockPool
from python_llm.engine.drafts import Speculator
from python_llm.engine.plan import Runner, StepPlan
from python_llm.engine.request import Output, Request
from python_llm.engine.sampling_params import OFF
from python_llm.engine.scheduler import Scheduler
from python_llm.errors import (
    CancelledError,
    EngineError,
    InvalidRequestError,
    RequestError,
    UnavailableError,
)

_IDLE_CHECK_AFTER_S = 1.0
_DEADLINE_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Load:
    """How busy an engine is."""

    num_running: int
    num_waiting: int
    kv_usage: float
    """Share of the pages that requests hold, 0 to 1. Pages that only the prefix index knows do not count."""
    num_drafted: int
    """Drafts verified since the start, and how many of them became output."""
    num_accepted: int


class Engine:
    """Runs requests on a runner, continuously batched."""

    def __init__(
        self,
        runner: Runner,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_queue_size: int,
        enable_prefix_caching: bool,
        log_error: Callable[[str], None],
        speculator: Speculator | None = None,
    ) -> None:
        """`speculator` None: no request is speculated for."""
        self._runner = runner
        self._speculator = speculator
        self._speculation_methods = frozenset() if speculator is None else speculator.methods
        self._scheduler = Scheduler(
            BlockPool(runner.num_blocks),
            block_size=runner.block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            enable_prefix_caching=enable_prefix_caching,
        )
        self._max_num_seqs = max_num_seqs
        self._max_queue_size = max_queue_size
        self._log_error = log_error
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._num_in_flight = 0
        self._accepting = True
        self._closed_because = "the model is being unloaded and takes no new requests"
        self._stopping = False
        self._next_deadline_poll = 0.0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def max_model_len(self) -> int:
        return self._runner.max_model_len

    @property
    def num_in_flight(self) -> int:
        """Requests submitted and not yet ended. Any thread."""
        return self._num_in_flight

    def load(self) -> Load:
        """A glance from any thread: the figures may be a step apart."""
        scheduler = self._scheduler
        usage = scheduler.pool.num_used / scheduler.pool.num_blocks
        return Load(scheduler.num_running, scheduler.num_waiting, usage, scheduler.num_drafted, scheduler.num_accepted)

    def start(self) -> None:
        self._thread.start()

    def resolve_max_tokens(self, num_prompt: int, max_tokens: int | None) -> int:
        """How many tokens a request may sample. `max_tokens` None: as many as fit.

        Raises InvalidRequestError when the request could never run.
        """
        limit = min(self._runner.max_model_len, self._runner.num_blocks * self._runner.block_size)
        if num_prompt == 0:
            raise InvalidRequestError("the prompt is empty: at least 1 token is expected")
        if num_prompt >= limit:
            raise InvalidRequestError(
                f"the prompt has {num_prompt} tokens; this model takes at most {limit - 1} (max_model_len {limit})"
            )
        if max_tokens is None:
            return limit - num_prompt
        if num_prompt + max_tokens > limit:
            raise InvalidRequestError(
                f"max_tokens {max_tokens} and a prompt of {num_prompt} tokens exceed max_model_len {limit}: "
                f"max_tokens may be at most {limit - num_prompt} for this prompt"
            )
        return max_tokens

    def submit(self, requests: Sequence[Request]) -> None:
        """Take in the sequences of one user request, all or none. Any thread.

        Raises UnavailableError when the queue is full or the engine is going away, InvalidRequestError when a request
        names a way to speculate that this model was not loaded with.
        """
        for request in requests:
            self._check_speculation(request.params.speculation)
        with self._lock:
            if not self._accepting:
                raise UnavailableError(self._closed_because)
            limit = self._max_num_seqs + self._max_queue_size
            if self._num_in_flight + len(requests) > limit:
                raise UnavailableError(
                    f"too many requests: {self._num_in_flight} sequences are in flight and {len(requests)} more came; "
                    f"the limit is {limit} (max_num_seqs {self._max_num_seqs} + max_queue_size "
                    f"{self._max_queue_size}); try again later"
                )
            self._num_in_flight += len(requests)
            # Inside the lock: after `stop` has queued its command nothing may follow.
            self._inbox.put(lambda: self._add(requests))

    def cancel(self, requests: Sequence[Request], reason: str = "the request was cancelled by its client") -> None:
        """End `requests` as cancelled, queued or running; their pages are free after the step under way. Any thread."""
        self._inbox.put(lambda: self._end(requests, CancelledError(reason)))

    def finish(self, requests: Sequence[Request]) -> None:
        """End `requests` without error: each gives what it has, with the reason CANCELLED. Any thread."""
        self._inbox.put(lambda: self._emit_all(self._scheduler.stop(request) for request in requests))

    def drain(self, timeout_s: float) -> bool:
        """Take no new requests and wait for those in flight. True when none is left."""
        with self._lock:
            self._accepting = False
        end = time.monotonic() + timeout_s
        while self._num_in_flight and time.monotonic() < end:
            time.sleep(0.01)
        return self._num_in_flight == 0

    def stop(self) -> None:
        """End what is in flight with UNAVAILABLE and join the engine thread."""
        with self._lock:
            self._accepting = False
            self._inbox.put(self._stop)
        self._thread.join()

    def check(self) -> None:
        """Raise AssertionError unless every page is accounted for. Looks between two steps. Any thread."""
        done: queue.SimpleQueue[AssertionError | None] = queue.SimpleQueue()

        def run() -> None:
            try:
                self._scheduler.check()
                done.put(None)
            except AssertionError as error:
                done.put(error)

        self._inbox.put(run)
        if (error := done.get()) is not None:
            raise error

    def _check_speculation(self, method: str | None) -> None:
        allowed = {OFF, *self._speculation_methods}
        if method is not None and method not in allowed:
            raise InvalidRequestError(
                f"speculation must be one of {', '.join(sorted(allowed))} for this model, as its setting of that name "
                f"allows, got {method!r}"
            )

    # Everything below runs on the engine thread.

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._take_commands()
                if self._scheduler.has_requests:
                    self._step()
        except Exception:
            self._die(traceback.format_exc())

    def _step(self) -> None:
        plan: StepPlan | None = None
        try:
            self._end_overdue()
            plan = self._scheduler.plan()
            if not plan.spans:
                return
            plan = self._add_drafts(plan)
            result = self._runner.execute(plan)
            outputs = self._scheduler.commit(plan, result)
        except Exception as error:
            self._log_error(f"a step failed: {traceback.format_exc()}")
            self._fail(plan, EngineError(f"the engine failed in a step: {type(error).__name__}: {error}"))
            return
        self._emit(outputs)

    def _add_drafts(self, plan: StepPlan) -> StepPlan:
        if self._speculator is None or not (openings := self._scheduler.openings(plan)):
            return plan
        try:
            drafts = self._speculator.draft(plan.num_tokens, openings)
        except Exception:
            self._stop_speculating()
            return plan
        return self._scheduler.add_drafts(plan, drafts) if drafts else plan

    def _stop_speculating(self) -> None:
        """A fault in guessing is no reason to fail a request."""
        self._log_error(f"speculation failed and is off until the model is loaded again: {traceback.format_exc()}")
        self._speculator = None

    def _take_commands(self) -> None:
        """Run what is in the inbox; with nothing to do otherwise, wait for it."""
        checked = False
        while True:
            try:
                if self._scheduler.has_requests:
                    command = self._inbox.get_nowait()
                else:
                    command = self._inbox.get(timeout=None if checked else _IDLE_CHECK_AFTER_S)
            except queue.Empty:
                if self._scheduler.has_requests:
                    return
                self._check_idle()
                checked = True
                continue
            command()
            if self._stopping:
                return

    def _check_idle(self) -> None:
        try:
            self._scheduler.check()
        except AssertionError as error:
            self._log_error(f"the page pool is inconsistent while idle: {error}")

    def _add(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._scheduler.add(request)

    def _end(self, requests: Sequence[Request], error: RequestError) -> None:
        self._emit_all(self._scheduler.finish(request, error) for request in requests)

    def _emit_all(self, outputs: Iterable[Output | None]) -> None:
        self._emit([output for output in outputs if output is not None])

    def _end_overdue(self) -> None:
        now = time.monotonic()
        if now < self._next_deadline_poll:
            return
        self._next_deadline_poll = now + _DEADLINE_POLL_S
        overdue = [r for r in self._scheduler.requests() if r.deadline is not None and now >= r.deadline]
        for request in overdue:
            seconds = now - request.times.arrival
            progress = f"{request.num_output} tokens after {seconds:.3f} s"
            self._end([request], UnavailableError(f"deadline exceeded: the request had {progress}"))

    def _fail(self, plan: StepPlan | None, error: EngineError) -> None:
        """End the requests of the failed step; when the scheduler itself failed, all of them."""
        planned = None if plan is None else {span.request_id for span in plan.spans}
        failed = [r for r in self._scheduler.requests() if planned is None or r.id in planned]
        self._end(failed, error)

    def _die(self, trace: str) -> None:
        """The bookkeeping itself is broken: answer everybody once and refuse what comes, rather than hang."""
        self._log_error(f"the engine stopped: {trace}")
        with self._lock:
            self._accepting = False
            self._closed_because = "the engine of this model has stopped after an internal fault; reload the model"
        # Nothing new can arrive now, but requests accepted before are still in the inbox.
        while not self._inbox.empty():
            self._inbox.get()()
        error = EngineError("the engine stopped after an internal fault; reload the model")
        self._emit([Output(r, error=error) for r in self._scheduler.requests()])

    def _stop(self) -> None:
        self._stopping = True
        self._end(list(self._scheduler.requests()), UnavailableError("the model was unloaded before the request ended"))

    def _emit(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if output.is_last:
                with self._lock:
                    self._num_in_flight -= 1
                self._forget(output.request)
            try:
                output.request.sink(output)
            except Exception:
                self._log_error(f"an output could not be delivered: {traceback.format_exc()}")

    def _forget(self, request: Request) -> None:
        if self._speculator is not None:
            try:
                self._speculator.forget(request)
            except Exception:
                self._stop_speculating()
