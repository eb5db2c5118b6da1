"""What happens to requests when clients leave, or time, room or the model itself runs out; on a real Triton."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import requests
import tritonclient.grpc as grpcclient

from asking import Response, ask, generate, generate_stream, is_idle, metric, tensors, text_of, wait_until
from python_llm_client.local_server import LocalServer
from server import running_server
from tiny_repository import add_model

pytestmark = pytest.mark.triton

FOREVER = {"max_tokens": 4000, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    repository: Path = tmp_path_factory.mktemp("repository")
    add_model(repository, "tiny", max_num_seqs=16)
    add_model(repository, "narrow", max_num_seqs=1, max_queue_size=2)
    add_model(repository, "hasty", request_timeout_s=0.3, max_num_seqs=1)
    add_model(repository, "reloaded")
    add_model(repository, "steady", max_num_seqs=16, kv_cache_memory_mib=8)
    with running_server(repository) as running:
        yield running


def is_running(server: LocalServer, model: str) -> bool:
    return metric(server, "vllm:num_requests_running", model) > 0


@contextlib.contextmanager
def open_stream(server: LocalServer, model: str, **values: object) -> Iterator[grpcclient.InferenceServerClient]:
    """A gRPC stream with one endless request under way."""
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: None)
        client.async_stream_infer(model, tensors(text_input="abc", sampling_parameters=FOREVER, **values))
        yield client


@pytest.mark.parametrize("stream", [True, False])
def test_a_grpc_client_that_cancels_stops_its_generation(server: LocalServer, stream: bool) -> None:
    with open_stream(server, "tiny", stream=stream) as client:
        wait_until(lambda: is_running(server, "tiny"))
        client.stop_stream(cancel_requests=True)
        wait_until(lambda: is_idle(server, "tiny"), 2)


def test_an_http_stream_whose_client_hangs_up_stops_its_generation(server: LocalServer) -> None:
    """Not so for /generate without a stream: Triton does not read from that connection until it has answered, so only
    the deadline ends such a request (see docs/operating.md)."""
    events = generate_stream(server, "tiny", text_input="abc", stream=True, **FOREVER)
    next(events)
    wait_until(lambda: is_running(server, "tiny"))
    events.close()
    wait_until(lambda: is_idle(server, "tiny"), 5)


def test_a_queued_request_can_be_cancelled(server: LocalServer) -> None:
    with open_stream(server, "narrow") as first, open_stream(server, "narrow") as second:
        wait_until(lambda: metric(server, "vllm:num_requests_waiting", "narrow") == 1)
        second.stop_stream(cancel_requests=True)
        wait_until(lambda: metric(server, "vllm:num_requests_waiting", "narrow") == 0, 2)
        assert is_running(server, "narrow")
        first.stop_stream(cancel_requests=True)
    wait_until(lambda: is_idle(server, "narrow"))


def test_a_full_queue_is_unavailable_and_says_its_limit(server: LocalServer) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(open_stream(server, "narrow")) for _ in range(3)]
        wait_until(lambda: metric(server, "vllm:num_requests_waiting", "narrow") == 2)
        (refused,) = ask(server, "narrow", text_input="abc")
        assert refused.error is not None and "the limit is 3" in refused.error
        # Unary HTTP inference is not for decoupled models; /generate answers 400 for every code (Triton 2.51).
        assert "the limit is 3" in generate(server, "narrow", text_input="abc").json()["error"]
        for client in clients:
            client.stop_stream(cancel_requests=True)
    wait_until(lambda: is_idle(server, "narrow"))
    assert text_of(ask(server, "narrow", text_input="abc", sampling_parameters={"ignore_eos": True}))


def test_more_sequences_than_the_queue_holds_are_refused_together(server: LocalServer) -> None:
    (refused,) = ask(server, "narrow", text_input="abc", sampling_parameters={"n": 4})
    assert refused.error is not None and "the limit is 3" in refused.error
    wait_until(lambda: is_idle(server, "narrow"))


def test_deadlines_stop_running_and_queued_requests(server: LocalServer) -> None:
    with ThreadPoolExecutor(4) as pool:
        jobs = [
            pool.submit(ask, server, "hasty", text_input="abc", stream=True, sampling_parameters=FOREVER)
            for _ in range(4)
        ]
        for job in jobs:
            assert "deadline exceeded" in str(job.result()[-1].error)
    wait_until(lambda: is_idle(server, "hasty"))


@pytest.mark.parametrize("how", ["grpc", "http"])
def test_a_request_can_bring_its_own_deadline(server: LocalServer, how: str) -> None:
    started = time.monotonic()
    if how == "http":
        error = generate(server, "tiny", text_input="abc", timeout=200_000, **FOREVER).json()["error"]
    else:
        error = ask(server, "tiny", text_input="abc", sampling_parameters=FOREVER, timeout_us=200_000)[-1].error
    assert "deadline exceeded" in str(error)
    assert time.monotonic() - started < 3
    wait_until(lambda: is_idle(server, "tiny"))


def test_64_streams_at_once_give_the_texts_of_one_by_one(server: LocalServer) -> None:
    prompts = [f"{'shared beginning ' * (i % 4)}prompt number {i}" for i in range(64)]
    parameters = {"max_tokens": 24, "temperature": 0.8, "seed": 3}

    def over_grpc(prompt: str) -> str:
        return text_of(ask(server, "tiny", text_input=prompt, stream=True, sampling_parameters=parameters))

    def over_sse(prompt: str) -> str:
        events = generate_stream(server, "tiny", text_input=prompt, stream=True, **parameters)
        return "".join(event["text_output"] for event in events)

    expected = [over_grpc(prompt) for prompt in prompts]
    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(over_grpc, prompts)) == expected
        assert list(pool.map(over_sse, prompts)) == expected
    wait_until(lambda: is_idle(server, "tiny"))


def test_200_clients_that_leave_at_random_leave_nothing_behind(server: LocalServer) -> None:
    rng = random.Random(1)
    plans = [(rng.choice(["grpc", "sse"]), rng.random() * 0.4, number) for number in range(200)]

    def visit(plan: tuple[str, float, int]) -> None:
        how, stay, number = plan
        if how == "grpc":
            with open_stream(server, "tiny", stream=number % 3 > 0) as client:
                time.sleep(stay)
                client.stop_stream(cancel_requests=True)
        else:
            url = f"http://127.0.0.1:{server.http_port}/v2/models/tiny/generate_stream"
            body = {"text_input": f"visitor {number}", "stream": True, **FOREVER}
            with contextlib.suppress(requests.Timeout), requests.post(url, json=body, stream=True, timeout=5) as reply:
                end = time.monotonic() + stay
                for _ in reply.iter_lines():
                    if time.monotonic() > end:
                        break

    with ThreadPoolExecutor(40) as pool:
        list(pool.map(visit, plans))
    wait_until(lambda: is_idle(server, "tiny"))
    assert text_of(ask(server, "tiny", text_input="still there?", sampling_parameters={"ignore_eos": True}))


def _repository_call(server: LocalServer, model: str, action: str) -> None:
    url = f"http://127.0.0.1:{server.http_port}/v2/repository/models/{model}/{action}"
    requests.post(url, timeout=60).raise_for_status()


def _is_ready(server: LocalServer, model: str) -> bool:
    return requests.get(f"http://127.0.0.1:{server.http_port}/v2/models/{model}/ready", timeout=10).status_code == 200


def test_unloading_lets_streams_finish_and_loading_again_serves(server: LocalServer) -> None:
    parameters = {"max_tokens": 1500, "temperature": 0, "ignore_eos": True}
    expected = text_of(ask(server, "reloaded", text_input="abc", sampling_parameters=parameters, stream=True))
    for _ in range(2):
        # The gauges are a little behind: what ran before must not be taken for the stream below.
        wait_until(lambda: is_idle(server, "reloaded"))
        answers: list[list[Response]] = []

        def stream(answers: list[list[Response]] = answers) -> None:
            answers.append(ask(server, "reloaded", text_input="abc", sampling_parameters=parameters, stream=True))

        thread = threading.Thread(target=stream)
        thread.start()
        wait_until(lambda: is_running(server, "reloaded"))
        _repository_call(server, "reloaded", "unload")
        thread.join(60)
        assert text_of(answers[0]) == expected, "the stream under way ran to its end"
        wait_until(lambda: not _is_ready(server, "reloaded"))
        wait_until(lambda: not _stubs(server, "reloaded"))
        assert is_idle(server, "reloaded"), "the gauges of a model that is gone show no load"
        _repository_call(server, "reloaded", "load")
        wait_until(lambda: _is_ready(server, "reloaded"))
        assert text_of(ask(server, "reloaded", text_input="abc", sampling_parameters=parameters)) == "abc" + expected


def _stubs(server: LocalServer, model: str) -> list[psutil.Process]:
    """The processes of this server that run `model`."""
    found = []
    for process in psutil.Process(server.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join(process.cmdline())
            if "triton_python_backend_stub" in command and f"/{model}/" in command:
                found.append(process)
    return found


def test_memory_does_not_grow_with_requests(server: LocalServer) -> None:
    (stub,) = _stubs(server, "steady")

    def visit(number: int) -> None:
        events = generate_stream(server, "steady", text_input=f"visitor {number} " * 20, stream=True, max_tokens=8)
        assert list(events)

    def used() -> tuple[int, int]:
        shm = os.statvfs("/dev/shm")
        return stub.memory_info().rss, (shm.f_blocks - shm.f_bavail) * shm.f_frsize

    with ThreadPoolExecutor(16) as pool:
        # The pool of pages fills with cached prefixes first, and is touched; only then must memory stand still.
        list(pool.map(visit, range(600)))
        before = used()
        list(pool.map(visit, range(600, 1600)))
        after = used()
    assert after[0] - before[0] < 15 << 20, f"resident memory grew from {before[0]} to {after[0]} bytes"
    assert after[1] - before[1] < 8 << 20, f"/dev/shm grew from {before[1]} to {after[1]} bytes"
