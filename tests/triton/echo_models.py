"""Tiny models on Triton's own Python backend that speak the text face: what the command line needs, without weights."""

from __future__ import annotations

from pathlib import Path

_CONFIG = """
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [
  { name: "text_input" data_type: TYPE_STRING dims: [1] optional: true },
  { name: "messages" data_type: TYPE_STRING dims: [1] optional: true },
  { name: "stream" data_type: TYPE_BOOL dims: [1] optional: true },
  { name: "sampling_parameters" data_type: TYPE_STRING dims: [1] optional: true },
  { name: "exclude_input_in_output" data_type: TYPE_BOOL dims: [1] optional: true },
  { name: "return_finish_reason" data_type: TYPE_BOOL dims: [1] optional: true },
  { name: "return_num_input_tokens" data_type: TYPE_BOOL dims: [1] optional: true },
  { name: "return_num_output_tokens" data_type: TYPE_BOOL dims: [1] optional: true },
  { name: "return_stats" data_type: TYPE_BOOL dims: [1] optional: true }
]
output [
  { name: "text_output" data_type: TYPE_STRING dims: [-1] },
  { name: "finish_reason" data_type: TYPE_STRING dims: [-1] },
  { name: "num_output_tokens" data_type: TYPE_UINT32 dims: [-1] },
  { name: "stats" data_type: TYPE_STRING dims: [1] }
]
"""

_ECHO = '''
import json
import threading
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    """Answers with the words of the prompt or of the last message, up to max_tokens.

    "slow" as first word: a tenth of a second a word. "broken": an error after the first word. Cancelled: writes a file.
    """

    def initialize(self, args):
        self._cancelled = Path(args["model_repository"]) / "cancelled"

    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self._answer, args=(request, request.get_response_sender())).start()

    def _answer(self, request, sender):
        def given(name):
            tensor = pb.get_input_tensor_by_name(request, name)
            return None if tensor is None else tensor.as_numpy()[0]

        messages = given("messages")
        if messages is None:
            prompt = given("text_input").decode()
        else:
            turns = json.loads(messages)
            prompt = turns[-1]["content"] + f" ({len(turns)} messages, {turns[0]['role']} first)"
        parameters = json.loads(given("sampling_parameters") or "{}")
        if parameters.get("temperature", 0) > 2:
            error = pb.TritonError("temperature must be at most 2, not 3", pb.TritonError.INVALID_ARG)
            sender.send(pb.InferenceResponse(error=error), flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        words = prompt.split(" ")[: parameters.get("max_tokens", 16)]
        for index, word in enumerate(words):
            if words[0] == "slow":
                time.sleep(0.1)
            if sender.is_cancelled():
                self._cancelled.write_text(str(index))
                sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                return
            if words[0] == "broken" and index == 1:
                error = pb.TritonError("the echo broke", pb.TritonError.INTERNAL)
                sender.send(pb.InferenceResponse(error=error), flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                return
            last = index + 1 == len(words)
            outputs = [
                pb.Tensor("text_output", np.array([(word if last else word + " ").encode()], dtype=object)),
                pb.Tensor("finish_reason", np.array([b"stop" if last else b"None"], dtype=object)),
                pb.Tensor("num_output_tokens", np.array([1], dtype=np.uint32)),
            ]
            if last and given("return_stats"):
                outputs.append(pb.Tensor("stats", np.array([b\'{"output_tokens": %d}\' % len(words)], dtype=object)))
            flags = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
            sender.send(pb.InferenceResponse(outputs), flags=flags)
'''

_FAILING = """
class SettingsError(Exception):
    pass


class TritonPythonModel:
    def initialize(self, args):
        raise SettingsError("the file weights.gguf does not exist: put it into the version folder")

    def execute(self, requests):
        return []
"""

_DYING = _FAILING.replace("raise SettingsError", "import os; os._exit").replace(
    '"the file weights.gguf does not exist: put it into the version folder"', "3"
)

_SLEEPING = """
import time


class TritonPythonModel:
    def initialize(self, args):
        time.sleep(60)

    def execute(self, requests):
        return []
"""


def write_echo_model(repository: Path, name: str = "echo") -> Path:
    """A decoupled model that streams its input back, word by word. Returns its folder."""
    return _write(repository, name, _ECHO)


def write_failing_model(repository: Path, name: str = "failing") -> Path:
    """A model that refuses to load, with a sentence that says why."""
    return _write(repository, name, _FAILING)


def write_dying_model(repository: Path, name: str = "dying") -> Path:
    """A model whose process dies while it loads."""
    return _write(repository, name, _DYING)


def write_sleeping_model(repository: Path, name: str = "sleeping") -> Path:
    """A model that takes a minute to load."""
    return _write(repository, name, _SLEEPING)


def _write(repository: Path, name: str, code: str) -> Path:
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(_CONFIG)
    (folder / "1" / "model.py").write_text(code)
    return folder
