"""Speculation behind a real Triton: the same texts with and without, said per request, and the figures that show it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from asking import ask, generate, metric, text_of, wait_until
from python_llm_client.local_server import LocalServer
from server import running_server
from tiny_repository import add_model

pytestmark = pytest.mark.triton

DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    repository: Path = tmp_path_factory.mktemp("repository")
    # A repetition penalty below 1 makes even a random model repeat itself: something to look up.
    add_model(repository, "looking", speculation="prompt_lookup", prompt_lookup_min_ngram=1)
    add_model(repository, "counted", speculation="prompt_lookup", prompt_lookup_min_ngram=1)
    add_model(repository, "plain")
    with running_server(repository) as running:
        yield running


def answer(server: LocalServer, model: str, **parameters: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every output of one request, its streamed parts joined, and its stats."""
    responses = ask(
        server,
        model,
        text_input="the cat and the dog and the cat and the dog and the",
        stream=True,
        return_stats=True,
        return_logprobs=True,
        return_finish_reason=True,
        return_num_output_tokens=True,
        sampling_parameters={"max_tokens": 120, "logprobs": 1, **parameters},
    )
    text_of(responses)
    parts = [response.outputs for response in responses if response.outputs]
    num_sequences = range(len(parts[0]["text_output"]))
    joined: dict[str, Any] = {
        "text": ["".join(part["text_output"][i] for part in parts) for i in num_sequences],
        "logprobs": [[entry for part in parts for entry in json.loads(part["logprobs"][i])] for i in num_sequences],
        "num_tokens": [sum(part["num_output_tokens"][i] for part in parts) for i in num_sequences],
    }
    joined["finish_reason"] = responses[-1].outputs["finish_reason"]
    return joined, json.loads(responses[-1].outputs["stats"][0])


KINDS: list[dict[str, Any]] = [
    {"temperature": 0, "repetition_penalty": 0.5},
    {"temperature": 0.2, "seed": 5, "repetition_penalty": 0.5},
    {"temperature": 0.2, "seed": 6, "n": 3, "repetition_penalty": 0.5},
    {"temperature": 0, "repetition_penalty": 0.5, "stop": ["th", "e d", "\x00"], "min_tokens": 5},
    {"temperature": 1, "seed": 7},
]


def test_texts_and_logprobs_are_the_same_with_and_without(server: LocalServer) -> None:
    with ThreadPoolExecutor(len(KINDS)) as pool:
        drafted = list(pool.map(lambda kind: answer(server, "looking", **kind), KINDS))
    for kind, (outputs, stats) in zip(KINDS, drafted, strict=True):
        off, off_stats = answer(server, "looking", speculation="off", **kind)
        none, none_stats = answer(server, "looking", num_draft_tokens=0, **kind)
        plain, _ = answer(server, "plain", **kind)
        assert outputs == off == none == plain
        assert stats["drafted_tokens"] >= stats["accepted_tokens"]
        assert (off_stats["drafted_tokens"], none_stats["drafted_tokens"]) == (0, 0)
        alone, _ = answer(server, "looking", **kind)
        assert alone == outputs
    assert sum(stats["accepted_tokens"] for _, stats in drafted) > 0


def test_accepted_drafts_show_in_stats_and_metrics(server: LocalServer) -> None:
    _, stats = answer(server, "counted", **KINDS[0])
    drafted, accepted = stats["drafted_tokens"], stats["accepted_tokens"]
    assert drafted >= accepted > 0
    wait_until(lambda: (metric(server, DRAFTED, "counted"), metric(server, ACCEPTED, "counted")) == (drafted, accepted))
    assert metric(server, DRAFTED, "plain") == 0


def test_what_cannot_be_had_is_refused(server: LocalServer) -> None:
    refused = generate(server, "plain", text_input="a", speculation="prompt_lookup")
    assert refused.status_code == 400
    assert "speculation must be one of off for this model" in refused.json()["error"]
    refused = generate(server, "looking", text_input="a", speculation="medusa")
    assert "speculation must be one of off, prompt_lookup, got 'medusa'" in refused.json()["error"]
    allowed = generate(server, "plain", text_input="a", speculation="off", num_draft_tokens=3)
    assert allowed.status_code == 200
