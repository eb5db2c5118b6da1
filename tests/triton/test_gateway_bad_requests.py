"""Requests that nobody meant to send: the gateway answers each with 4xx in the form of the API, never 5xx, never not.

`GATEWAY_EXAMPLES` sets how many are tried of each kind.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance

from asking import ask, is_idle, text_of, wait_until
from gateway_process import RunningGateway, running_gateway
from python_llm_client.gateway.openai.answers_schema import ErrorBody
from python_llm_client.local_server import LocalServer
from server import running_server
from tiny_repository import add_model

pytestmark = pytest.mark.triton

EXAMPLES = int(os.environ.get("GATEWAY_EXAMPLES", "100"))
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    "/v1/completions": {"model": "tiny", "prompt": "a", "max_tokens": 2},
    "/api/chat": {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "options": {"num_predict": 2}},
    "/api/generate": {"model": "tiny", "prompt": "a", "options": {"num_predict": 2}},
}
_OPENAI = """messages prompt n stop temperature top_p seed logit_bias logprobs top_logprobs stream stream_options tools
response_format max_tokens max_completion_tokens best_of echo user metadata presence_penalty min_p top_k stop_token_ids
bad_words model"""
_OLLAMA = """messages prompt options stream format keep_alive system raw images model"""
QUICKLY = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)
PATHS = st.sampled_from(sorted(VALID))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    repository = tmp_path_factory.mktemp("repository")
    add_model(repository, "tiny", max_model_len=128)
    with running_server(repository) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(server: LocalServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway([server], tmp_path_factory.mktemp("gateway") / "log", "--max-body-kib=64") as running:
        yield running
    wait_until(lambda: is_idle(server, "tiny"))
    assert text_of(ask(server, "tiny", text_input="still there?", sampling_parameters={"ignore_eos": True}))


def send(gateway: RunningGateway, path: str, body: bytes, **headers: str) -> requests.Response:
    headers = {"content-type": "application/json", **headers}
    return requests.post(gateway.url + path, data=body, headers=headers, timeout=20)


def alone(value: Any) -> Any:
    """At most one prompt of a list.

    When one of several is refused the others are cancelled, here in their last moment: Triton can then keep the model
    for ever (docs/operating.md), and this server would not stop.
    """
    return value[:1] if isinstance(value, list) else value


def is_refused_well(path: str, response: requests.Response) -> bool:
    """4xx, in the form of the API, with a message."""
    assert 400 <= response.status_code < 500, (response.status_code, response.text)
    if path.startswith("/v1"):
        return bool(ErrorBody.model_validate(response.json()).error.message)
    return bool(response.json()["error"])


@QUICKLY
@given(
    path=PATHS,
    body=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()),
)
def test_bodies_that_are_no_requests(gateway: RunningGateway, path: str, body: bytes) -> None:
    assert is_refused_well(path, send(gateway, path, body))


@QUICKLY
@given(path=PATHS, name=st.text(min_size=1, max_size=15), value=JSON, at=st.integers(0, 200))
def test_unknown_parameters_and_bodies_cut_short(
    gateway: RunningGateway, path: str, name: str, value: Any, at: int
) -> None:
    assume(not name.isascii())
    body = json.dumps({**VALID[path], name: value}).encode()
    assert is_refused_well(path, send(gateway, path, body))
    assert is_refused_well(path, send(gateway, path, body[: at % (len(body) - 1)]))


@QUICKLY
@given(data=st.data(), path=PATHS, value=JSON)
def test_values_of_any_kind_in_any_place(gateway: RunningGateway, data: st.DataObject, path: str, value: Any) -> None:
    """Some of them are right by chance; then the answer is one."""
    name = data.draw(st.sampled_from((_OPENAI if path.startswith("/v1") else _OLLAMA).split()))
    if data.draw(st.booleans()) and name in {"messages", "options", "stream_options"}:
        inner = data.draw(st.sampled_from(["role", "content", "name", "temperature", "stop", "include_usage", "seed"]))
        value = [{"role": "user", "content": "a", inner: value}] if name == "messages" else {inner: value}
    response = send(gateway, path, json.dumps({**VALID[path], name: alone(value)}).encode())
    assert response.status_code == 200 or is_refused_well(path, response)


def test_every_path_keeps_to_its_document(gateway: RunningGateway) -> None:
    schema = schemathesis.openapi.from_url(gateway.url + "/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert {operation.path for operation in operations} >= {*VALID, "/v1/models", "/api/tags", "/health"}
    for operation in operations:

        @settings(QUICKLY, max_examples=max(5, EXAMPLES // 10))
        @given(case=operation.as_strategy())
        def check(case: schemathesis.Case) -> None:
            if isinstance(case.body, dict):
                # So that it does not stay at "there is no such model".
                case.body["model"] = "tiny"
                if "prompt" in case.body:
                    case.body["prompt"] = alone(case.body["prompt"])
            # A document cannot say what a model's template or its context refuses.
            case.call_and_validate(timeout=20, excluded_checks=[positive_data_acceptance])

        check()


@pytest.mark.parametrize("path", sorted(VALID))
def test_bodies_at_the_edges(gateway: RunningGateway, path: str) -> None:
    valid = json.dumps(VALID[path]).encode()
    assert send(gateway, path, valid).status_code == 200
    assert send(gateway, path, valid[:-1] + b', "model": "tiny"}').status_code == 200
    assert send(gateway, path, b" " * 65537).status_code == 413
    chunked = requests.post(gateway.url + path, data=iter([b" " * 40000] * 2), timeout=20)
    assert is_refused_well(path, chunked)
    assert chunked.status_code == 413
    assert is_refused_well(path, send(gateway, path, b"[" * 60000))
    assert is_refused_well(path, send(gateway, path, valid[:-1] + b', "seed": NaN}'))
    assert is_refused_well(path, send(gateway, path, valid.replace(b'"a"', b'"\\ud800"')))
    assert is_refused_well(path, requests.get(gateway.url + path, timeout=20))
    # A page of somebody else's, by a form that the browser sends without asking.
    foreign = send(gateway, path, valid, **{"content-type": "text/plain", "origin": "http://elsewhere.example"})
    assert is_refused_well(path, foreign)
    assert "access-control-allow-origin" not in foreign.headers
