"""The door to Triton: its requests become the engine's requests, its life cycle becomes load, serve and stop.

Runs inside Triton's Python stub, which imports this file as `model`. Does not know how anything behind the door works.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

try:
    import python_llm  # noqa: F401
except ImportError:
    # The backend was copied into Triton's backend directory and not installed with pip.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from python_llm.config import ModelSettings, load_settings
from python_llm.errors import EngineError, PythonLLMError, RequestError
from python_llm.triton_io.io_spec import INPUTS, OUTPUTS

_DRAIN_TIMEOUT_S = 30.0


class TritonPythonModel:
    """One loaded model. Triton calls these methods, all from one thread."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Fill in what config.pbtxt leaves out: inputs, outputs, decoupled, no batching by Triton."""
        config = auto_complete_model_config.as_dict()
        declared = {tensor["name"] for tensor in (*config["input"], *config["output"])}
        for tensor in INPUTS:
            if tensor["name"] not in declared:
                auto_complete_model_config.add_input(tensor)
        for tensor in OUTPUTS:
            if tensor["name"] not in declared:
                auto_complete_model_config.add_output(tensor)
        auto_complete_model_config.set_model_transaction_policy({"decoupled": True})
        auto_complete_model_config.set_max_batch_size(0)
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model. Raises TritonModelException with one sentence when the user must mend something."""
        import triton_python_backend_utils as pb_utils

        try:
            folder = Path(pb_utils.get_model_dir())
            self._start(load_settings(folder / "model.json", args["model_name"]), folder)
            self._publish_metrics(args)
        except PythonLLMError as error:
            raise pb_utils.TritonModelException(str(error)) from None

    def execute(self, requests: list[Any]) -> None:
        """Turn each Triton request into requests of the engine; answers come later, from the senders."""
        for triton_request in requests:
            responder = self._responder(triton_request)
            try:
                self._accept(triton_request, responder)
            except RequestError as error:
                responder.send_error(error)
            except Exception as error:
                self._log_error(f"a request could not be taken in: {type(error).__name__}: {error}")
                responder.send_error(EngineError(f"the request could not be taken in: {type(error).__name__}: {error}"))

    def finalize(self) -> None:
        """Called when Triton has no request of this model in flight, or after its exit timeout."""
        self._engine.drain(_DRAIN_TIMEOUT_S)
        self._engine.stop()
        self._senders.stop()
        self._sweeper.stop()
        self._metrics.stop()

    def _start(self, settings: ModelSettings, folder: Path) -> None:
        from python_llm.engine.engine import Engine
        from python_llm.loading import runner_of, speculator_of, tokenizer_of
        from python_llm.triton_io.bridge import Responder, SenderPool, Sweeper, log_error, log_warning

        self._settings = settings
        self._responder = Responder
        self._log_error = log_error
        self._tokenizer = tokenizer_of(settings, folder)
        runner = runner_of(settings, folder, log_warning)
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
        self._senders = SenderPool()
        self._sweeper = Sweeper()
        self._engine.start()
        self._senders.start()
        self._sweeper.start()

    def _publish_metrics(self, args: dict[str, str]) -> None:
        from python_llm.triton_io.metrics import MetricsPublisher

        self._metrics = MetricsPublisher(self._engine.load, args["model_name"], args["model_version"])
        self._metrics.start()

    def _accept(self, triton_request: Any, responder: Any) -> None:
        from python_llm.triton_io.admission import build_requests
        from python_llm.triton_io.bridge import Delivery, read_inputs, read_parameters
        from python_llm.triton_io.reply import Reply
        from python_llm.triton_io.text_request import read_text_request
        from python_llm.triton_io.text_response import TextResponder

        arrival = time.monotonic()
        asked = read_text_request(
            read_inputs(triton_request),
            read_parameters(triton_request),
            triton_request.timeout(),
            self._tokenizer,
            self._vocab_size,
            max_model_len=self._engine.max_model_len,
        )
        reply = Reply(
            asked.params.n,
            stream=asked.stream,
            interval=self._settings.stream_interval,
            wake=lambda: self._senders.schedule(delivery),
            cancel=self._engine.cancel,
        )
        timeout_s = self._settings.request_timeout_s if asked.timeout_s is None else asked.timeout_s
        requests = build_requests(asked, self._engine, self._tokenizer, reply, deadline=arrival + timeout_s)
        delivery = Delivery(reply, TextResponder(asked, requests, self._tokenizer.token_text), responder)
        reply.requests = requests
        self._engine.submit(requests)
        self._sweeper.watch(delivery)
