"""Prompt lookup: what it proposes, and what its memory keeps, gives and forgets."""

from __future__ import annotations

import numpy as np

from python_llm.engine.sampling_params import SamplingParams
from python_llm.speculation.prompt_lookup import PromptLookup
from python_llm.speculation.proposer import Ask, Draft


def ask(sequence_id: int, tokens: list[int], told: int = 0, num_prompt: int = 1, most: int = 3) -> Ask:
    new = np.array(tokens[told:], dtype=np.int32)
    return Ask(sequence_id, new, len(tokens), num_prompt, most, SamplingParams(), seed=0)


def lookup(memory_tokens: int = 0) -> PromptLookup:
    return PromptLookup(min_ngram=2, max_ngram=8, memory_tokens=memory_tokens)


def test_what_followed_the_longest_match_the_latest_of_equals() -> None:
    text = [1, 2, 3, 70, 71, 9, 2, 3, 80, 81, 8, 2, 3, 90, 91, 7, 1, 2, 3]
    assert lookup().propose([ask(0, text)]) == [Draft([70, 71, 9], grade=2)]
    assert lookup().propose([ask(0, [5, *text[6:]])]) == [Draft([90, 91, 7], grade=2)]
    assert lookup().propose([ask(0, [1, 2, 3, 4])]) == [Draft(())]


def test_sequences_are_kept_apart_and_told_only_what_is_new() -> None:
    proposer = lookup()
    first, second = [1, 2, 3, 4, 5], [1, 2, 8, 9, 5]
    proposer.propose([ask(0, first), ask(1, second)])
    drafts = proposer.propose([ask(1, [*second, 1, 2], told=5), ask(0, [*first, 1, 2], told=5)])
    assert [draft.token_ids for draft in drafts] == [[8, 9, 5], [3, 4, 5]]


def test_told_everything_again_it_begins_anew() -> None:
    proposer = lookup()
    proposer.propose([ask(0, [1, 2, 3])])
    assert proposer.propose([ask(0, [4, 5, 6, 4, 5])])[0].token_ids == [6, 4, 5]


def test_ended_sequences_leave_nothing_behind_without_memory() -> None:
    proposer = lookup()
    proposer.propose([ask(0, [1, 2, 3, 4])])
    proposer.forget(ask(0, [1, 2, 3, 4, 5], told=4))
    proposer.forget(ask(1, [1, 2, 3]))
    assert not proposer._sequences
    assert proposer.propose([ask(2, [9, 1, 2])]) == [Draft(())]


def test_memory_gives_what_another_sequence_went_on_with() -> None:
    proposer = lookup(memory_tokens=1000)
    proposer.propose([ask(0, [1, 2, 3, 4], num_prompt=2)])
    proposer.forget(ask(0, [1, 2, 3, 4, 5], told=4, num_prompt=2))
    assert proposer.propose([ask(1, [9, 1, 2])])[0].token_ids == [3, 4, 5]
    assert proposer.propose([ask(2, [9, 3, 4])])[0].token_ids == [5], "not into the next text"
    # Of two matches the longer one; of equals, the sequence's own.
    assert proposer.propose([ask(3, [2, 3, 60, 1, 2, 3])])[0].token_ids == [4, 5]
    assert proposer.propose([ask(4, [2, 3, 60, 8, 2, 3])])[0].token_ids == [60, 8, 2]


def test_memory_learns_from_sequences_that_were_never_asked_about() -> None:
    proposer = lookup(memory_tokens=1000)
    proposer.forget(ask(0, [1, 2, 3, 4, 5], num_prompt=2))
    assert proposer.propose([ask(1, [9, 3, 4])])[0].token_ids == [5]


def test_memory_is_bounded_and_drops_the_oldest() -> None:
    proposer = lookup(memory_tokens=100)
    for number in range(200):
        tokens = [1000 * number + i for i in range(20)]
        proposer.forget(ask(number, tokens))
        memory = proposer._memory
        assert memory is not None
        assert len(memory._newer.tokens) + len(memory._older.tokens) <= 100
        assert len(memory._newer._latest) + len(memory._older._latest) <= 100
    assert proposer.propose([ask(1000, [9, 199_003, 199_004])])[0].token_ids == [199_005, 199_006, 199_007]
    assert proposer.propose([ask(1001, [9, 3, 4])]) == [Draft(())]


def test_a_text_longer_than_the_memory_is_cut() -> None:
    proposer = lookup(memory_tokens=20)
    proposer.forget(ask(0, list(range(500))))
    assert proposer.propose([ask(1, [900, 3, 4])])[0].token_ids == [5, 6, 7]
    assert proposer.propose([ask(2, [900, 300, 301])]) == [Draft(())]


def test_a_long_prompt_is_indexed_bit_by_bit_and_keeps_nobody_waiting() -> None:
    proposer = lookup()
    long = [*range(10_000), 5, 6]
    drafts = []
    for number in range(3):
        (first, second) = proposer.propose(
            [ask(0, long, told=len(long) * (number > 0)), ask(number + 1, [1, 2, 3, 1, 2])]
        )
        drafts.append(first)
        assert second.token_ids == [3, 1, 2], "a short one is served at once"
    assert drafts == [Draft(()), Draft(()), Draft([7, 8, 9], grade=2)]


def test_what_is_remembered_is_indexed_bit_by_bit() -> None:
    proposer = lookup(memory_tokens=100_000)
    proposer.forget(ask(0, list(range(10_000))))
    memory = proposer._memory
    assert memory is not None and memory._newer.num_pending > 9_000
    drafts = [proposer.propose([ask(number, [20_000, 9_000, 9_001])])[0] for number in range(1, 4)]
    assert drafts == [Draft(()), Draft(()), Draft([9_002, 9_003, 9_004], grade=2)]
    assert memory._newer.num_pending == 0


def test_reset_forgets_the_sequences() -> None:
    proposer = lookup()
    proposer.propose([ask(0, [1, 2, 3])])
    proposer.reset()
    assert not proposer._sequences
