"""A real server for a test: `python-llm serve` in a child process on free ports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from python_llm_client.local_server import LocalServer, ServerFailedError, start_server


@contextmanager
def running_server(
    *model_repositories: Path,
    models: Sequence[str] | None = None,
    settings: Mapping[str, Mapping[str, str]] | None = None,
) -> Iterator[LocalServer]:
    """Yields an object with `.http_port`, `.grpc_port`, `.metrics_port`, `.process` and `.log()`.

    Leaving it stops the server by SIGTERM and checks that it exits with 0 (unless the test ended it itself). When the
    test or the server fails, the server's log is printed, so pytest shows it.
    """
    try:
        with start_server(*model_repositories, models=models, settings=settings) as server:
            try:
                yield server
                if server.process.poll() is None:
                    status = server.stop()
                    assert status == 0, f"serve ended with {status} after SIGTERM"
            except BaseException:
                print(server.log())
                raise
    except ServerFailedError as error:
        print(error.log)
        raise
