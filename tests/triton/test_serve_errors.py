"""`python-llm serve` and `chat` as a user meets them: a real tritonserver, the real command, tiny models.

The suite's other tests drive language models; here the server's life and its error lines are what counts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests

from echo_models import write_dying_model, write_echo_model, write_failing_model, write_sleeping_model
from python_llm_client.answers import Stats
from python_llm_client.client import Client
from python_llm_client.failures import ClientError
from python_llm_client.local_server import LocalServer, free_ports
from server import running_server

pytestmark = pytest.mark.triton

LONG = "slow " + "word " * 49
"""Five seconds of answer."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "python_llm_client", *arguments]


def serve_command(repository: Path, ports: tuple[int, int, int], *more: str) -> list[str]:
    flags = [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)]
    return command("serve", f"--model-repository={repository}", *flags, *more)


def run(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), input=text, capture_output=True, text=True, timeout=60, check=False, env=os.environ
    )


@contextlib.contextmanager
def started(repository: Path, *more: str, until: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`serve` in a process, when it has printed the line `until`, and its gRPC port."""
    ports = free_ports()
    process = subprocess.Popen(
        serve_command(repository, ports, *more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(until):
                break
        yield process, ports[1]
    finally:
        process.kill()
        process.wait()


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """tritonserver and its stubs."""
    found = psutil.Process(process.pid).children(recursive=True)
    return [child for child in found if "triton" in child.name()]


def shared_memory(members: list[psutil.Process]) -> list[Path]:
    prefixes = {a.rpartition("=")[2] for p in members for a in p.cmdline() if "shm-region-prefix-name" in a}
    assert len(prefixes) == 1
    return list(Path("/dev/shm").glob(prefixes.pop() + "*"))


def all_gone(members: list[psutil.Process], regions: list[Path]) -> bool:
    psutil.wait_procs(members, timeout=5)
    deadline = time.monotonic() + 5
    while any(region.exists() for region in regions) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in members) and not any(
        region.exists() for region in regions
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write_echo_model(folder)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[LocalServer]:
    with running_server(repository) as running:
        yield running


@pytest.fixture
def url(server: LocalServer) -> str:
    return f"127.0.0.1:{server.grpc_port}"


def test_all_three_endpoints_answer_when_ready_is_said(server: LocalServer) -> None:
    for port, path in ((server.http_port, "v2/health/ready"), (server.metrics_port, "metrics")):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
            assert answer.status == 200
    Client(f"127.0.0.1:{server.grpc_port}").check("echo")


def test_models_are_loaded_and_unloaded_later_through_the_repository_api(
    server: LocalServer, repository: Path, url: str
) -> None:
    write_echo_model(repository, "later")

    def ask(what: str) -> None:
        address = f"http://127.0.0.1:{server.http_port}/v2/repository/models/later/{what}"
        urllib.request.urlopen(urllib.request.Request(address, method="POST"), timeout=30).close()

    ask("load")
    assert [delta.text for delta in Client(url).stream("later", "here")] == ["here"]
    ask("unload")
    with pytest.raises(ClientError, match="later"):
        Client(url).check("later")


def test_deltas_come_one_by_one_and_the_last_tells_the_end(url: str) -> None:
    deltas = list(Client(url).stream("echo", "one two three", stats=True))
    assert [delta.text for delta in deltas] == ["one ", "two ", "three"]
    assert [delta.finish_reason for delta in deltas] == [None, None, "stop"]
    assert [delta.tokens for delta in deltas] == [1, 1, 1]
    assert [delta.stats for delta in deltas] == [None, None, Stats(output_tokens=3)]


def test_closing_the_iterator_cancels_on_the_server(url: str, repository: Path) -> None:
    mark = repository / "echo" / "cancelled"
    answer = Client(url).stream("echo", LONG, sampling={"max_tokens": 50})
    next(answer)
    answer.close()
    deadline = time.monotonic() + 3
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert int(mark.read_text()) < 40


def test_an_error_in_the_middle_keeps_the_text_before_it_and_its_code(url: str) -> None:
    answer = Client(url).stream("echo", "broken heart")
    assert next(answer).text == "broken "
    with pytest.raises(ClientError, match=r"^the echo broke$") as caught:
        next(answer)
    assert caught.value.code == "INTERNAL"


def test_an_answer_that_takes_too_long_is_stopped(url: str) -> None:
    with pytest.raises(ClientError, match=r"longer than 0\.5 s") as caught:
        list(Client(url).stream("echo", LONG, sampling={"max_tokens": 50}, timeout=0.5))
    assert caught.value.code == "DEADLINE_EXCEEDED"


def test_chat_answers_a_question(url: str) -> None:
    done = run("chat", "--model=echo", f"--url={url}", "--system=be kind", "hello there")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello there (2 messages, system first)\n", "")


def test_chat_keeps_a_history_and_obeys_commands_from_a_pipe(url: str) -> None:
    done = run("chat", "--model=echo", f"--url={url}", text="one\ntwo\n/clear\nthree\n/exit\nfour\n")
    assert done.stdout.splitlines() == [
        "one (1 messages, user first)",
        "two (3 messages, user first)",
        "three (1 messages, user first)",
    ]
    assert (done.returncode, done.stderr) == (0, "forgotten\n")


def test_ctrl_c_stops_an_answer_in_a_terminal_but_not_the_conversation(url: str) -> None:
    ours, theirs = os.openpty()
    # A shell that runs the tests in the background has them ignore Ctrl-C, and their children with them.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        command("chat", "--model=echo", f"--url={url}", "--max-tokens=50"),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TERM": "dumb"},
        bufsize=1,
    )
    signal.signal(signal.SIGINT, previous)
    # What never says it has stopped must fail, not hang.
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None and process.stderr is not None
        process.stderr.readline()
        os.write(ours, LONG.encode() + b"\r")
        assert process.stdout.read(5) == "slow "
        process.send_signal(signal.SIGINT)
        assert any("[stopped]" in line for line in process.stderr)
        os.write(ours, b"again\r")
        os.write(ours, b"/exit\r")
        assert process.wait(10) == 0
        assert "again (3 messages, user first)" in process.stdout.read()
    finally:
        watchdog.cancel()
        process.kill()
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--model=eco", "hi"], 'serves no model "eco"; it serves: echo'),
        (["--model=echo", "--temperature=3", "hi"], "temperature must be at most 2, not 3"),
    ],
)
def test_chat_says_what_is_wrong_in_one_line(url: str, arguments: list[str], line: str) -> None:
    done = run("chat", f"--url={url}", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert line in done.stderr


def test_chat_without_a_server_says_how_to_start_one() -> None:
    done = run("chat", f"--url=127.0.0.1:{free_ports()[0]}", "hi")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "start one with python-llm serve" in done.stderr


def test_a_taken_port_is_named_with_its_flag(server: LocalServer, repository: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        free = free_ports()
        done = run(*serve_command(repository, (free[0], port, free[2]))[3:])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"port {port} (--grpc-port) is taken" in done.stderr


def test_two_servers_start_at_once_from_an_empty_cache(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON_LLM_CACHE", str(tmp_path / "cache"))
    with (
        started(repository, "--models=echo", until="python-llm: serving") as (one, _),
        started(repository, "--models=echo", until="ready") as (two, grpc_port),
    ):
        assert next(Client(f"127.0.0.1:{grpc_port}").stream("echo", "hi")).text == "hi"
        assert one.stdout is not None
        assert "ready\n" in one.stdout
        for process in (one, two):
            process.terminate()
        assert [process.wait(20) for process in (one, two)] == [0, 0]


def test_models_that_fail_to_load_are_told_with_their_reason_only(tmp_path: Path) -> None:
    for write in (write_echo_model, write_failing_model, write_dying_model):
        write(tmp_path)
    done = run(*serve_command(tmp_path, free_ports())[3:])
    assert (done.returncode, done.stdout) == (1, "")
    reason = "the file weights.gguf does not exist: put it into the version folder\n"
    assert f"the model failing did not load: {reason}" in done.stderr
    assert "the model dying did not load: its Python process ended while it loaded" in done.stderr
    assert "At:" not in done.stderr and "Traceback" not in done.stderr
    log = Path(done.stderr.rsplit("The full log is ", maxsplit=1)[1].strip())
    assert "weights.gguf" in log.read_text()


def test_only_the_models_asked_for_are_loaded(tmp_path: Path) -> None:
    write_echo_model(tmp_path)
    write_failing_model(tmp_path)
    with running_server(tmp_path, models=["echo"]) as server:
        Client(f"127.0.0.1:{server.grpc_port}").check("echo")


def test_sigterm_lets_running_answers_finish(repository: Path) -> None:
    with started(repository, "--models=echo", until="ready") as (process, port):
        answer = Client(f"127.0.0.1:{port}").stream("echo", "slow " + "word " * 9)
        next(answer)
        process.terminate()
        assert sum(delta.tokens for delta in answer) == 10
        assert process.wait(20) == 0


def test_a_second_signal_stops_at_once_and_leaves_nothing(repository: Path) -> None:
    with started(repository, "--models=echo", until="ready") as (process, port):
        members = family(process)
        regions = shared_memory(members)
        answer = Client(f"127.0.0.1:{port}").stream("echo", LONG, sampling={"max_tokens": 50})
        next(answer)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 1
        assert process.stdout is not None
        assert "stopped at once" in process.stdout.read()
        with pytest.raises(ClientError, match="went away"):
            list(answer)
        assert regions and all_gone(members, regions)


def test_sigterm_while_loading_stops_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    write_echo_model(tmp_path)
    write_sleeping_model(tmp_path)
    with started(tmp_path, until="loaded echo") as (process, _):
        members = family(process)
        regions = shared_memory(members)
        process.terminate()
        assert process.wait(5) == 0
        assert regions and all_gone(members, regions)


def test_nothing_outlives_a_killed_serve_even_with_a_request_in_flight(repository: Path) -> None:
    with started(repository, "--models=echo", until="ready") as (process, port):
        members = family(process)
        regions = shared_memory(members)
        answer = Client(f"127.0.0.1:{port}").stream("echo", LONG, sampling={"max_tokens": 50})
        next(answer)
        process.kill()
        with pytest.raises(ClientError, match="went away"):
            list(answer)
        assert len(members) == 2 and regions and all_gone(members, regions)


def _gateway(process: subprocess.Popen[str]) -> psutil.Process:
    children = psutil.Process(process.pid).children()
    (gateway,) = [child for child in children if "gateway" in child.cmdline()]
    return gateway


def test_serve_brings_a_gateway_that_ends_with_it(repository: Path) -> None:
    port = free_ports()[0]
    with started(repository, "--models=echo", f"--openai-port={port}", until="ready") as (process, _):
        gateway = _gateway(process)
        url = f"http://127.0.0.1:{port}"
        body = {"model": "echo", "prompt": "slow " + "word " * 9, "stream": True}
        with requests.post(url + "/v1/completions", json=body, stream=True, timeout=30) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.terminate()
            assert [line for line in lines if line][-1] == b"data: [DONE]", "a running answer is finished"
        assert process.wait(20) == 0
        assert not gateway.is_running()


def test_a_gateway_that_dies_ends_serve_and_a_killed_serve_ends_its_gateway(repository: Path) -> None:
    options = ("--models=echo", f"--openai-port={free_ports()[0]}")
    with started(repository, *options, until="ready") as (process, _):
        _gateway(process).kill()
        assert process.wait(20) == 1
        assert process.stdout is not None
        assert "the gateway ended by itself" in process.stdout.read()
    with started(repository, *options, until="ready") as (process, _):
        gateway = _gateway(process)
        process.kill()
        assert all_gone([gateway], [])


def test_a_tritonserver_that_dies_is_told(repository: Path) -> None:
    with started(repository, "--models=echo", until="ready") as (process, _):
        next(p for p in family(process) if p.name() == "tritonserver").kill()
        assert process.wait(10) == 1
        assert process.stdout is not None
        assert "tritonserver ended by itself (killed by SIGKILL)" in process.stdout.read()
