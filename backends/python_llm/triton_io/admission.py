"""A checked user request -> the engine's requests, one for each of the n sequences.

Does not know tensors or how answers are sent.
"""

from __future__ import annotations

import dataclasses
from functools import partial

from python_llm.engine.engine import Engine
from python_llm.engine.request import Request
from python_llm.engine.sampling import sequence_seed
from python_llm.engine.text import TextStream
from python_llm.tokenization.tokenizer import Tokenizer
from python_llm.triton_io.reply import Reply
from python_llm.triton_io.user_request import UserRequest


def build_requests(
    asked: UserRequest, engine: Engine, tokenizer: Tokenizer, reply: Reply, *, deadline: float
) -> list[Request]:
    """`deadline`: monotonic seconds. Raises InvalidRequestError when the request could never run."""
    params = asked.params
    max_new_tokens = engine.resolve_max_tokens(len(asked.prompt_ids), params.max_tokens)
    return [
        Request(
            asked.prompt_ids,
            # Once is enough: the others then share the pages that the first computes.
            params if index == 0 else dataclasses.replace(params, prompt_logprobs=None),
            seed=sequence_seed(params.seed, index),
            max_new_tokens=max_new_tokens,
            sink=partial(reply.push, index),
            text=TextStream(tokenizer.token_bytes, tokenizer.special_token_ids, params),
            deadline=deadline,
            want_logprobs=asked.returns.logprobs or asked.returns.cumulative_logprob or asked.returns.log_probs,
        )
        for index in range(params.n)
    ]
