"""The door to Triton: its requests become the engine's requests, its life cycle becomes load, serve and stop.

Runs inside Triton's Python stub, which imports this file as `model`. Does not know how anything behind the door works.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import python_llm  # noqa: F401
except ImportError:
    # The backend was copied into Triton's backend directory and not installed with pip.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from python_llm.config import ModelSettings, load_settings
from python_llm.errors import EngineError, PythonLLMError, RequestError, SettingsError
from python_llm.triton_io.io_spec import MODEL_IO

_DRAIN_TIMEOUT_S = 30.0


class TritonPythonModel:
    """One loaded model. Triton calls these methods, all from one thread."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Fill in what config.pbtxt leaves out: inputs, outputs, decoupled or not, no batching by Triton."""
        config = auto_complete_model_config.as_dict()
        with _told_to_triton():
            _, settings = _read_settings(config["name"])
        io = MODEL_IO[settings.kind]
        declared = {tensor["name"] for tensor in (*config["input"], *config["output"])}
        for tensor in io.inputs:
            if tensor["name"] not in declared:
                auto_complete_model_config.add_input(tensor)
        for tensor in io.outputs:
            if tensor["name"] not in declared:
                auto_complete_model_config.add_output(tensor)
        auto_complete_model_config.set_model_transaction_policy({"decoupled": io.decoupled})
        auto_complete_model_config.set_max_batch_size(0)
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model. Raises TritonModelException with one sentence when the user must mend something."""
        with _told_to_triton():
            folder, settings = _read_settings(args["model_name"])
            _refuse_several_instances(settings.kind, args)
            if settings.kind == "llm":
                self._model: Any = LanguageModel(settings, folder, args)
            else:
                self._model = _text_model(settings, folder)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """The responses; None from decoupled models, which send theirs by themselves."""
        answers: list[Any] | None = self._model.execute(requests)
        return answers

    def finalize(self) -> None:
        """Called when Triton has no request of this model in flight, or after its exit timeout."""
        self._model.stop()


@contextlib.contextmanager
def _told_to_triton() -> Iterator[None]:
    import triton_python_backend_utils as pb_utils

    try:
        yield
    except PythonLLMError as error:
        raise pb_utils.TritonModelException(str(error)) from None


def _read_settings(model_name: str) -> tuple[Path, ModelSettings]:
    import triton_python_backend_utils as pb_utils

    folder = Path(pb_utils.get_model_dir())
    return folder, load_settings(folder / "model.json", model_name)


_ONE_INSTANCE = {
    "llm": "each would load the weights again, and a stop request would find only those of its own instance",
    "tokenizer": "several would answer a request and its stop in any order",
    "detokenizer": "several would answer the pieces of a stream in any order",
}
"""Why a model of this kind must not have more."""


def _refuse_several_instances(kind: str, args: dict[str, str]) -> None:
    groups = json.loads(args["model_config"]).get("instance_group", [])
    if (count := sum(int(group.get("count", 1)) for group in groups)) > 1:
        raise SettingsError(
            f"a model of kind {kind} must have 1 instance, config.pbtxt asks for {count}: {_ONE_INSTANCE[kind]}"
        )


def _text_model(settings: ModelSettings, folder: Path) -> Any:
    from python_llm.loading import locate_model, tokenizer_of
    from python_llm.triton_io.text_models import DetokenizerModel, TokenizerModel

    tokenizer = tokenizer_of(settings, folder, locate_model(settings, folder))
    if settings.kind == "tokenizer":
        return TokenizerModel(tokenizer, settings.max_model_len)
    return DetokenizerModel(tokenizer)


class LanguageModel:
    """Triton's requests become the engine's requests; answers come later, from the senders."""

    def __init__(self, settings: ModelSettings, folder: Path, args: dict[str, str]) -> None:
        self._start(settings, folder)
        self._publish_metrics(args)

    def execute(self, requests: list[Any]) -> None:
        """Never raises: each request is answered for itself."""
        for triton_request in requests:
            responder = self._responder(triton_request)
            try:
                self._accept(triton_request, responder)
            except RequestError as error:
                self._errors.send(responder, error)
            except Exception as error:
                message = f"the request could not be taken in: {type(error).__name__}: {error}"
                self._log_error(message)
                self._errors.send(responder, EngineError(message))

    def stop(self) -> None:
        self._engine.drain(_DRAIN_TIMEOUT_S)
        self._engine.stop()
        self._senders.stop()
        self._errors.stop()
        self._sweeper.stop()
        self._metrics.stop()

    def _start(self, settings: ModelSettings, folder: Path) -> None:
        from python_llm.engine.engine import Engine
        from python_llm.loading import locate_model, runner_of, speculator_of, tokenizer_of
        from python_llm.triton_io.bridge import ErrorSender, Responder, SenderPool, Sweeper, log_error, log_warning
        from python_llm.triton_io.running_requests import RunningRequests

        self._settings = settings
        self._responder = Responder
        self._log_error = log_error
        files = locate_model(settings, folder)
        self._tokenizer = tokenizer_of(settings, folder, files)
        runner = runner_of(settings, files, log_warning)
        self._vocab_size = runner.vocab_size
        self._engine = Engine(
            runner,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_queue_size=settings.max_queue_size,
            enable_prefix_caching=settings.enable_prefix_caching,
            log_error=log_error,
            speculator=speculator_of(settings, runner, log_warning),
        )
        # What is loaded stays until the process ends: the collector need not walk through it again and again.
        gc.collect()
        gc.freeze()
        self._running = RunningRequests()
        self._senders = SenderPool()
        self._errors = ErrorSender()
        self._sweeper = Sweeper()
        self._engine.start()
        self._senders.start()
        self._errors.start()
        self._sweeper.start()

    def _publish_metrics(self, args: dict[str, str]) -> None:
        from python_llm.triton_io.metrics import MetricsPublisher

        self._metrics = MetricsPublisher(self._engine.load, args["model_name"], args["model_version"])
        self._metrics.start()

    def _accept(self, triton_request: Any, responder: Any) -> None:
        from python_llm.triton_io.admission import build_requests
        from python_llm.triton_io.bridge import Delivery, read_inputs, read_parameters
        from python_llm.triton_io.reply import Reply
        from python_llm.triton_io.tensor_values import flag
        from python_llm.triton_io.text_response import TextResponder
        from python_llm.triton_io.token_response import TokenResponder, stop_outputs
        from python_llm.triton_io.user_request import read_request

        arrival = time.monotonic()
        request_id = triton_request.request_id()
        tensors = read_inputs(triton_request)
        if flag(tensors, "stop", False):
            self._running.stop(request_id)
            responder.send_outputs(stop_outputs(), is_last=True)
            return
        asked = read_request(
            tensors,
            read_parameters(triton_request),
            triton_request.timeout(),
            self._tokenizer,
            self._vocab_size,
            max_model_len=self._engine.max_model_len,
            wanted=triton_request.requested_output_names(),
        )
        reply = Reply(
            asked.params.n,
            stream=asked.stream,
            interval=self._settings.stream_interval,
            wake=lambda: self._senders.schedule(delivery),
            cancel=self._engine.cancel,
            finish=self._engine.finish,
        )
        timeout_s = self._settings.request_timeout_s if asked.timeout_s is None else asked.timeout_s
        requests = build_requests(asked, self._engine, self._tokenizer, reply, deadline=arrival + timeout_s)
        face = (
            TextResponder(asked, requests, self._tokenizer.token_text)
            if asked.tokens is None
            else TokenResponder(asked, asked.tokens, requests, self._tokenizer)
        )
        running = self._running
        delivery = Delivery(reply, face, responder, self._errors, on_end=lambda: running.remove(request_id, reply))
        reply.requests = requests
        running.add(request_id, reply)
        try:
            self._engine.submit(requests)
        except RequestError:
            running.remove(request_id, reply)
            raise
        self._sweeper.watch(delivery)
