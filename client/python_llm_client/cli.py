"""The `python-llm` command: options and one-line errors. What the commands do is in their own modules."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from python_llm_client.errors import CommandError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def main() -> NoReturn:
    """Run the command line and exit. An error that the user can mend is one line on stderr, never a traceback."""
    try:
        status = app(standalone_mode=False)
    except CommandError as error:
        _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except Exception as error:
        # The classes of typer's own usage errors differ between its versions; all of them have this method.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        text = message()
        if not text:
            sys.exit(2)  # Called without a command: the help is printed already.
        _fail(f"{text} (see python-llm --help)", 2)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int) -> NoReturn:
    print(f"python-llm: {message}", file=sys.stderr)
    sys.exit(status)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"python-llm {version('python-llm')}")
        raise typer.Exit


@app.callback()
def _options(
    show: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Serves language models with Triton Inference Server, and talks to them."""


@app.command()
def serve(
    *,
    model_repository: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder with one folder per model; may be repeated. [default: ./model_repository and ./ensembles]"
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 listens on all.")] = "127.0.0.1",
    http_port: int = 8000,
    grpc_port: int = 8001,
    metrics_port: int = 8002,
    models: Annotated[str, typer.Option(help="Load only these at start, comma-separated. [default: all]")] = "",
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="MODEL.SETTING=VALUE", help="Override a setting of a model; may be repeated."),
    ] = None,
    openai_port: Annotated[
        int | None, typer.Option(help="Also run a gateway that speaks OpenAI's and Ollama's API. [default: none]")
    ] = None,
    api_keys: Annotated[
        Path | None, typer.Option(help="The gateway's key file (python-llm api-key). [default: no key needed]")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show tritonserver's own log.")] = False,
) -> None:
    """Serve the models of a repository. Prints `ready` when they are; SIGTERM or Ctrl-C stops it."""
    from python_llm_client.launch import ServeOptions
    from python_llm_client.serve import serve as run

    options = ServeOptions(
        repositories=model_repository or [],
        host=host,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        models=[name.strip() for name in models.split(",") if name.strip()],
        assignments=set_ or [],
        openai_port=openai_port,
        api_keys=api_keys,
        verbose=verbose,
    )
    run(options, Console(stderr=True))


@app.command()
def gateway(
    *,
    triton: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT", help="A Triton server's gRPC endpoint; may be repeated. [default: 127.0.0.1:8001]"
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 listens on all.")] = "127.0.0.1",
    port: int = 9000,
    api_keys: Annotated[
        Path | None, typer.Option(help="Key file (python-llm api-key). [default: no key needed]")
    ] = None,
    max_concurrent: Annotated[int, typer.Option(min=1, help="Requests for text under way at once.")] = 256,
    max_body_kib: Annotated[int, typer.Option(min=1, help="Longest request body, in KiB.")] = 8192,
    request_timeout: Annotated[
        float, typer.Option(min=0.1, help="Longest answer, in seconds, waiting included.")
    ] = 600,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Let web pages of this origin call; may be repeated. [default: none]"),
    ] = None,
    triton_tls: Annotated[bool, typer.Option("--triton-tls", help="Encrypt the way to the Triton servers.")] = False,
    triton_ca: Annotated[
        Path | None, typer.Option(help="PEM file that vouches for them. [default: the system's certificates]")
    ] = None,
) -> None:
    """Speak OpenAI's and Ollama's API in front of Triton servers. Prints `ready`; SIGTERM or Ctrl-C stops it."""
    from python_llm_client.connection import Tls
    from python_llm_client.gateway.keys import read_keys
    from python_llm_client.gateway.run import run_gateway
    from python_llm_client.gateway.settings import GatewaySettings

    settings = GatewaySettings(
        servers=tuple(triton or ["127.0.0.1:8001"]),
        server_tls=Tls(triton_ca) if triton_tls or triton_ca else None,
        keys=read_keys(api_keys) if api_keys else (),
        max_concurrent=max_concurrent,
        max_body_bytes=max_body_kib << 10,
        request_timeout=request_timeout,
        cors_origins=tuple(cors_origin or ()),
    )
    run_gateway(settings, host, port)


@app.command()
def api_key(
    name: Annotated[str, typer.Argument(help="Whose key it is.")],
    *,
    file: Annotated[Path, typer.Option(help="The key file; made when it is not there.")] = Path("api-keys.json"),
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="[default: no limit]")] = None,
    max_concurrent: Annotated[int | None, typer.Option(min=1, help="[default: no limit]")] = None,
) -> None:
    """Make an API key for the gateway. Prints the key, which is shown only now; the file keeps its hash."""
    from python_llm_client.gateway.keys import add_key

    print(add_key(file, name, requests_per_minute, max_concurrent))


@app.command()
def chat(
    prompt: Annotated[str | None, typer.Argument(help="What to ask; without it a conversation begins.")] = None,
    *,
    model: Annotated[str, typer.Option(help="Name of the model in the server's repository.")] = "smollm2",
    url: Annotated[str, typer.Option(metavar="HOST:PORT", help="The server's gRPC endpoint.")] = "127.0.0.1:8001",
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 512,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is always the likeliest token.")] = None,
    system: Annotated[str | None, typer.Option(help="The system message that the conversation starts with.")] = None,
) -> None:
    """Talk to a model of a running server."""
    from python_llm_client.chat import Conversation
    from python_llm_client.chat import chat as run
    from python_llm_client.client import Client

    client = Client(url)
    client.check(model)
    sampling: dict[str, object] = {"max_tokens": max_tokens}
    if temperature is not None:
        sampling["temperature"] = temperature
    run(Conversation(client, model, system, sampling), prompt)


@app.command()
def doctor(
    model: Annotated[
        list[Path] | None, typer.Argument(help="model.json of a model to load and describe; may be repeated.")
    ] = None,
) -> int:
    """Say what this machine can do, and how models will run on it. Takes some seconds."""
    # In a process of its own: the client knows nothing of the backend but its settings.
    return subprocess.call([sys.executable, "-m", "python_llm.doctor", *map(str, model or [])])


@app.command()
def demo() -> None:
    """Start the models of this project, show one answer and eight at once, and stop."""
    from python_llm_client.demo import demo as run

    run(Console())
