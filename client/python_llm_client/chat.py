"""`python-llm chat`: one question, or a conversation, on the terminal. Answers go to stdout, all else to stderr.

Does not know tensors: see `client`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO

from python_llm_client.client import Client
from python_llm_client.failures import ClientError
from python_llm_client.request import Message

HELP = "/clear forgets the conversation, /exit (or Ctrl-D) leaves, Ctrl-C stops an answer."


class Conversation:
    """What was said so far, and how to go on. Owned by one thread."""

    def __init__(self, client: Client, model: str, system: str | None, sampling: dict[str, object]) -> None:
        self._client = client
        self._model = model
        self._sampling = sampling
        self._start: list[Message] = [{"role": "system", "content": system}] if system else []
        self._turns: list[Message] = []

    def clear(self) -> None:
        self._turns = []

    def ask(self, text: str, out: TextIO) -> None:
        """Stream the answer to `out`, and remember question and answer, as far as it came.

        Raises ClientError; Ctrl-C ends the answer and passes on as KeyboardInterrupt.
        """
        question: Message = {"role": "user", "content": text}
        said: list[str] = []
        answer = self._client.stream(
            self._model, messages=[*self._start, *self._turns, question], sampling=self._sampling
        )
        try:
            with contextlib.closing(answer):
                for delta in answer:
                    said.append(delta.text)
                    out.write(delta.text)
                    out.flush()
        finally:
            if said:
                self._turns += [question, {"role": "assistant", "content": "".join(said)}]
                out.write("\n")
                out.flush()


def converse(
    conversation: Conversation, lines: Iterable[str], out: TextIO, tell: Callable[[str], None], *, go_on: bool
) -> None:
    """Answer `lines` until they end or /exit comes; `tell` takes what is not an answer.

    `go_on`: a failed or stopped answer is told, and the next line read; else its exception passes on.
    """
    for line in lines:
        text = line.strip()
        if text in {"/exit", "/quit"}:
            return
        if text == "/clear":
            conversation.clear()
            tell("forgotten")
        elif text.startswith("/"):
            tell(HELP if text == "/help" else f"unknown command {text}; {HELP}")
        elif text:
            try:
                conversation.ask(text, out)
            except (ClientError, KeyboardInterrupt) as end:
                if not go_on:
                    raise
                tell(str(end) or "[stopped]")


def typed_lines() -> Iterator[str]:
    """Lines that the user edits at a prompt, with a history; Ctrl-C drops the line, Ctrl-D ends."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.output import create_output

    # stdout is for answers, also when it goes to a file while a person types.
    session: PromptSession[str] = PromptSession(output=create_output(sys.stderr))
    while True:
        try:
            yield session.prompt("> ")
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


def chat(conversation: Conversation, prompt: str | None) -> None:
    """Answer `prompt`, or talk until stdin ends. Raises ClientError, but not where a person can go on talking."""
    if prompt is not None:
        conversation.ask(prompt, sys.stdout)
    elif sys.stdin.isatty():
        _tell(HELP)
        converse(conversation, typed_lines(), sys.stdout, _tell, go_on=True)
    else:
        converse(conversation, sys.stdin, sys.stdout, _tell, go_on=False)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
