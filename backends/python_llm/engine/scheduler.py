"""Who runs next, and for how many tokens.

There is no prefill phase and no decode phase: every step lets requests catch up from `num_computed` to `num_tokens`
within one token budget. Requests that are one token behind (decoding) are served first, then prompts by age; what the
budget leaves goes to waiting requests in the order of arrival. When pages run out, the youngest running request gives
its pages back and waits; its sampled tokens stay, so it continues where it was once they are computed again.

Drafts are added to a step that is planned already, from budget and pages that nobody else wants: they never keep a
token of another request waiting, and never preempt.

Owner: the engine thread. Does not know the model, text, clocks beyond the deadline it is told, or Triton.
"""

from __future__ import annotations

import dataclasses
import time
from bisect import insort
from collections.abc import Iterator, Mapping

import numpy as np

from python_llm.engine.blocks import BlockHash, BlockPool
from python_llm.engine.drafts import Opening
from python_llm.engine.plan import PromptLogprobsTask, SamplingTask, Span, StepPlan, StepResult
from python_llm.engine.request import FinishReason, Output, Request, RequestState
from python_llm.errors import RequestError


def _by_age(request: Request) -> int:
    return request.id


class Scheduler:
    """Plans steps and commits their results."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        enable_prefix_caching: bool,
    ) -> None:
        self.pool = pool
        self._block_size = block_size
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._enable_prefix_caching = enable_prefix_caching
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        """Both oldest first."""
        self.num_drafted = 0
        """Drafts verified since the start, and how many of them became output."""
        self.num_accepted = 0

    @property
    def has_requests(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def requests(self) -> Iterator[Request]:
        yield from self._running
        yield from self._waiting

    def add(self, request: Request) -> None:
        insort(self._waiting, request, key=_by_age)

    def plan(self) -> StepPlan:
        """The next step. Empty only when there are no requests."""
        scheduled: dict[Request, int] = {}
        budget = self._max_num_batched_tokens
        preempted = False
        for request in sorted(self._running, key=lambda r: (r.num_tokens - r.num_computed > 1, r.id)):
            if request.state is not RequestState.RUNNING:
                continue
            count = min(request.num_tokens - request.num_computed, budget)
            if count == 0:
                break
            victims = self._grow(request, request.num_computed + count)
            preempted |= bool(victims)
            for victim in victims:
                budget += scheduled.pop(victim, 0)
            if request.state is RequestState.RUNNING:
                scheduled[request] = count
                budget -= count
        if not preempted:
            self._admit(scheduled, budget)
        return StepPlan(tuple(self._span(request, count) for request, count in scheduled.items()))

    def openings(self, plan: StepPlan) -> list[Opening]:
        """Where drafts could be added to `plan`, the step just planned."""
        by_id = {request.id: request for request in self._running}
        sampled = [by_id[span.request_id] for span in plan.spans if span.sampling is not None]
        openings = [Opening(request, _most_drafts(request)) for request in sampled]
        return [opening for opening in openings if opening.most > 0]

    def add_drafts(self, plan: StepPlan, drafts: Mapping[int, np.ndarray]) -> StepPlan:
        """`plan` with `drafts` (by request id) to verify, fewer where budget or pages do not suffice."""
        budget = self._max_num_batched_tokens - plan.num_tokens
        by_id = {request.id: request for request in self._running}
        spans = []
        for span in plan.spans:
            added = drafts.get(span.request_id)
            if added is not None and span.sampling is not None:
                request = by_id[span.request_id]
                added = added[: max(0, min(budget, _most_drafts(request)))]
                added = added[: self._grow_freely(request, span.end + len(added)) - span.end]
                budget -= len(added)
                spans.append(_with_drafts(span, added, request.block_ids))
            else:
                spans.append(span)
        return StepPlan(tuple(spans))

    def commit(self, plan: StepPlan, result: StepResult) -> list[Output]:
        """Take in what the step computed. Returns what requests gained; finished ones have given their pages back."""
        now = time.monotonic()
        by_id = {request.id: request for request in self._running}
        outputs = []
        for span, tokens, prompt_logprobs in zip(plan.spans, result.tokens, result.prompt_logprobs, strict=True):
            request = by_id[span.request_id]
            # A prompt that is computed again after a preemption reports the same logprobs again.
            request.prompt_logprobs.extend(prompt_logprobs[len(request.prompt_logprobs) - span.start :])
            reason: FinishReason | None = None
            num_before = request.num_tokens
            for token in tokens:
                if request.times.first_token is None:
                    request.times.first_token = now
                reason = request.append(token)
                if reason is not None:
                    break
            num_accepted = max(0, len(tokens) - 1)
            self._advance(request, min(span.end - span.num_drafts + num_accepted, request.num_tokens))
            if span.num_drafts:
                self._count_drafts(request, span.num_drafts, min(num_accepted, request.num_tokens - num_before))
            if reason is not None:
                self._leave(request, now)
            output = request.release(reason) if tokens else None
            if output is not None:
                outputs.append(output)
        return outputs

    def finish(self, request: Request, error: RequestError) -> Output | None:
        """End a request, wherever it is, with `error`. None when it has ended already."""
        if request.state is RequestState.FINISHED:
            return None
        self._leave(request, time.monotonic())
        return Output(request, error=error)

    def stop(self, request: Request) -> Output | None:
        """End a request, wherever it is, with what it has, the held back included. None when it has ended already."""
        if request.state is RequestState.FINISHED:
            return None
        self._leave(request, time.monotonic())
        return request.release(FinishReason.CANCELLED)

    def check(self) -> None:
        """Raise AssertionError unless every page and every request is accounted for."""
        self.pool.check(request.block_ids for request in self.requests())
        assert all(r.state is RequestState.RUNNING for r in self._running)
        assert all(r.state is RequestState.WAITING and not r.block_ids for r in self._waiting)
        for request in self._running:
            assert request.num_computed < request.num_tokens, "a running request has nothing to compute"
            assert len(request.block_ids) == -(-request.num_computed // self._block_size), "pages and tokens disagree"

    def _grow(self, request: Request, num_tokens: int) -> list[Request]:
        """Give `request` the pages for its first `num_tokens` tokens; preempts the youngest until there are enough.

        Returns the preempted requests, among them perhaps `request` itself.
        """
        victims: list[Request] = []
        needed = self._num_blocks(num_tokens) - len(request.block_ids)
        while (blocks := self.pool.allocate(needed)) is None:
            victim = self._running[-1]
            self._preempt(victim)
            victims.append(victim)
            if victim is request:
                return victims
        request.block_ids.extend(blocks)
        return victims

    def _preempt(self, request: Request) -> None:
        self._give_back(request)
        request.num_preemptions += 1
        request.state = RequestState.WAITING
        self._running.remove(request)
        insort(self._waiting, request, key=_by_age)

    def _admit(self, scheduled: dict[Request, int], budget: int) -> None:
        in_progress = self._prefixes_in_progress() if self._waiting else set()
        for request in list(self._waiting):
            if budget == 0 or len(self._running) == self._max_num_seqs:
                return
            hashes = self._prefix_hashes(request)
            # Logprobs of the prompt need its logits, so it must be computed.
            shares = not request.wants_prompt_logprobs
            matched = self.pool.match(hashes) if shares else []
            if shares and len(matched) < len(hashes) and hashes[len(matched)] in in_progress:
                continue  # A running request is computing this very page: share it when it is done.
            if not self._has_room(request, matched):
                return
            self.pool.share(matched)
            request.block_ids = list(matched)
            request.num_computed = len(matched) * self._block_size
            if request.times.scheduled is None:
                request.times.scheduled = time.monotonic()
                request.num_cached_tokens = request.num_computed
            request.state = RequestState.RUNNING
            self._waiting.remove(request)
            insort(self._running, request, key=_by_age)
            count = min(request.num_tokens - request.num_computed, budget)
            self._grow(request, request.num_computed + count)
            scheduled[request] = count
            budget -= count
            in_progress.update(hashes[len(matched) :])

    def _has_room(self, request: Request, matched: list[int]) -> bool:
        """Whether all known tokens of `request` fit beside what the running requests are about to need.

        One spare page for each of them, so that the newcomer is not preempted at the next page boundary.
        """
        if not self._running:
            return True
        needed = self._num_blocks(request.num_tokens) - len(matched) + self.pool.num_cached(matched)
        reserved = sum(self._num_blocks(r.num_tokens) - len(r.block_ids) + 1 for r in self._running)
        return needed + reserved <= self.pool.num_available

    def _prefix_hashes(self, request: Request) -> list[BlockHash]:
        """Hashes of the full pages before the last known token (which must be computed: its logits are wanted)."""
        if not self._enable_prefix_caching:
            return []
        return request.block_hashes((request.num_tokens - 1) // self._block_size, self._block_size)

    def _prefixes_in_progress(self) -> set[BlockHash]:
        """Hashes of pages that running requests have yet to fill with tokens already known."""
        hashes: set[BlockHash] = set()
        for request in self._running:
            if request.num_tokens - request.num_computed > 1:
                done = request.num_computed // self._block_size
                hashes.update(self._prefix_hashes(request)[done:])
        return hashes

    def _span(self, request: Request, count: int) -> Span:
        start, end = request.num_computed, request.num_computed + count
        sampling = None
        if end == request.num_tokens:
            sampling = SamplingTask(
                params=request.params,
                seed=request.seed,
                history=request.token_ids(0, end),
                num_prompt=request.num_prompt,
                logprobs=request.logprobs,
            )
        prompt_logprobs = None
        if request.wants_prompt_logprobs and request.params.prompt_logprobs is not None:
            targets = request.token_ids(start + 1, min(end + 1, request.num_prompt))
            prompt_logprobs = PromptLogprobsTask(targets, request.params.prompt_logprobs)
        return Span(
            request_id=request.id,
            start=start,
            token_ids=request.token_ids(start, end),
            block_ids=np.array(request.block_ids, dtype=np.int32),
            sampling=sampling,
            prompt_logprobs=prompt_logprobs,
        )

    def _grow_freely(self, request: Request, num_tokens: int) -> int:
        """Give `request` pages for up to `num_tokens` tokens, as far as nobody need give any back for it.

        Returns for how many tokens it has pages now.
        """
        needed = self._num_blocks(num_tokens) - len(request.block_ids)
        request.block_ids.extend(self.pool.allocate(min(needed, self.pool.num_available)) or ())
        return min(num_tokens, len(request.block_ids) * self._block_size)

    def _advance(self, request: Request, num_computed: int) -> None:
        """Mark [0, num_computed) as computed: its full pages become known to the prefix index.

        Pages that only hold what drafts left, which were not accepted, are given back.
        """
        first, last = request.num_computed // self._block_size, num_computed // self._block_size
        request.num_computed = num_computed
        if self._enable_prefix_caching and last > first:
            hashes = request.block_hashes(last, self._block_size)
            for index in range(first, last):
                self.pool.register(request.block_ids[index], hashes[index])
        kept = self._num_blocks(num_computed)
        self.pool.release(request.block_ids[kept:])
        del request.block_ids[kept:]

    def _count_drafts(self, request: Request, drafted: int, accepted: int) -> None:
        request.num_drafted += drafted
        request.num_accepted += accepted
        self.num_drafted += drafted
        self.num_accepted += accepted

    def _leave(self, request: Request, now: float) -> None:
        (self._running if request.state is RequestState.RUNNING else self._waiting).remove(request)
        self._give_back(request)
        request.state = RequestState.FINISHED
        request.times.finished = now

    def _give_back(self, request: Request) -> None:
        self.pool.release(request.block_ids)
        request.block_ids = []
        request.num_computed = 0

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)


def _most_drafts(request: Request) -> int:
    # The step gives a token of its own after the drafts.
    return request.max_tokens - request.num_tokens - 1


def _with_drafts(span: Span, drafts: np.ndarray, block_ids: list[int]) -> Span:
    if not len(drafts) or span.sampling is None:
        return span
    return dataclasses.replace(
        span,
        token_ids=np.concatenate([span.token_ids, drafts]),
        block_ids=np.array(block_ids, dtype=np.int32),
        sampling=dataclasses.replace(span.sampling, history=np.concatenate([span.sampling.history, drafts])),
        num_drafts=len(drafts),
    )
