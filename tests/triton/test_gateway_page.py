"""The chat page in a real browser, on a real gateway and a real Triton."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from asking import is_idle, metric, wait_until
from gateway_process import RunningGateway, running_gateway
from python_llm_client.local_server import LocalServer
from server import running_server
from tiny_repository import add_model

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    repository = tmp_path_factory.mktemp("repository")
    add_model(repository, "tiny")
    with running_server(repository) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(server: LocalServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway([server], tmp_path_factory.mktemp("gateway") / "log") as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        # Chromium refuses its sandbox to root, as whom containers run tests.
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, gateway: RunningGateway) -> Iterator[Any]:
    """Fails the test on any complaint of the browser."""
    context = browser.new_context(color_scheme="light")
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if is_complaint(message) else None)
    page.goto(gateway.url)
    page.locator("#model option", has_text="tiny").wait_for(state="attached")
    page.locator("summary").click()
    yield page
    context.close()
    assert complaints == []


def is_complaint(message: Any) -> bool:
    # That a request was refused the browser reports by itself; it is no fault of the page.
    return message.type == "error" and "status of 400" not in message.text


def ask(page: Any, text: str, *, max_tokens: int = 8) -> None:
    page.fill("#temperature", "0")
    page.fill("#max_tokens", str(max_tokens))
    page.fill("#prompt", text)
    page.keyboard.press("Enter")


def is_complete(page: Any) -> None:
    page.locator("#status", has_text="complete").wait_for()


def test_an_answer_streams_in_with_its_timing_and_goes_into_the_history(page: Any, gateway: RunningGateway) -> None:
    page.fill("#system", "Be brief.")
    ask(page, "Hello")
    is_complete(page)
    assert "8 tokens" in page.inner_text("article.assistant footer")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 8, "temperature": 0, "top_p": 0.95}
    expected = gateway.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    with page.expect_request("**/chat/completions") as sent:
        ask(page, "And now?")
    messages += [{"role": "assistant", "content": expected}, {"role": "user", "content": "And now?"}]
    assert sent.value.post_data_json["messages"] == messages
    is_complete(page)


def test_a_question_without_an_answer_is_not_sent_with_the_next(page: Any) -> None:
    def refuse(route: Any) -> None:
        route.fulfill(status=400, json={"error": {"message": "not today"}})

    page.route("**/chat/completions", refuse)
    ask(page, "Hello")
    page.locator("#status", has_text="not today").wait_for()
    page.unroute("**/chat/completions")
    with page.expect_request("**/chat/completions") as sent:
        ask(page, "Hello again")
    assert sent.value.post_data_json["messages"] == [{"role": "user", "content": "Hello again"}]
    is_complete(page)
    assert page.locator("article").count() == 4


def test_escape_and_the_button_stop_an_answer_and_the_server(page: Any, server: LocalServer) -> None:
    def endless(route: Any) -> None:
        route.continue_(post_data=json.dumps({**route.request.post_data_json, "ignore_eos": True}))

    page.route("**/chat/completions", endless)
    for stop in (lambda: page.keyboard.press("Escape"), lambda: page.click("#stop")):
        page.click("#new")
        ask(page, "Hello", max_tokens=4000)
        wait_until(lambda: metric(server, "vllm:num_requests_running", "tiny") == 1)
        stop()
        page.locator("#status", has_text="stopped").wait_for()
        wait_until(lambda: is_idle(server, "tiny"), 5)
        assert page.locator("#send").is_visible()


def test_a_message_can_be_edited_and_an_answer_asked_for_again(page: Any) -> None:
    ask(page, "Hello")
    is_complete(page)
    first = page.inner_text("article.assistant .text")
    page.get_by_role("button", name="Ask for another answer").click()
    page.locator("article.assistant footer", has_text="8 tokens").wait_for()
    assert page.inner_text("article.assistant .text") == first, "greedy says the same again"
    page.get_by_role("button", name="Edit this message and ask again").click()
    page.get_by_role("textbox", name="Your message").first.fill("Something else entirely")
    page.keyboard.press("Enter")
    page.locator("article.assistant footer", has_text="8 tokens").wait_for()
    assert page.locator("article").count() == 2
    assert "Something else entirely" in page.inner_text("article.user .text")


def test_what_a_model_writes_becomes_text_and_never_markup(page: Any) -> None:
    hostile = "\n".join(
        [
            "<img src=x onerror=alert(1)> **bold** `a<b` *soft*",
            "# <script>alert(1)</script>",
            "- [link](javascript:alert(1))",
            "3. third",
            "```html",
            "<iframe src='//elsewhere.example'></iframe>",
        ]
    )
    shown = page.evaluate(
        """(source) => {
          const parent = document.createElement("div");
          renderMarkdown(parent, source);
          return [parent.textContent, [...parent.querySelectorAll("*")].map((node) => node.nodeName).join(" ")];
        }""",
        hostile,
    )
    assert shown[1] == "P STRONG CODE EM H3 UL LI OL LI PRE CODE"
    for piece in ("<img src=x onerror=alert(1)>", "<script>", "[link](javascript:alert(1))", "<iframe src='//"):
        assert piece in shown[0]


def test_what_goes_wrong_is_said_on_the_page(page: Any) -> None:
    page.fill("#top_p", "0.5")
    ask(page, "x" * 5000)
    page.locator("article.failed footer .error").wait_for()
    assert "max_model_len" in page.inner_text("article.failed footer .error")


def test_it_can_be_used_with_the_keyboard_and_is_named_for_screen_readers(page: Any) -> None:
    for role, name in [("combobox", "Model"), ("textbox", "Your message"), ("log", "Conversation"), ("button", "Send")]:
        assert page.get_by_role(role, name=name).count() == 1, name
    fields = "[...document.querySelectorAll('input, textarea, select')]"
    unnamed = page.evaluate(f"() => {fields}.filter((field) => !field.labels.length).map((field) => field.id)")
    assert unnamed == []
    assert page.evaluate("document.documentElement.classList.contains('dark')") is False
    page.get_by_role("button", name="Dark").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.classList.contains('dark')") is True
    page.reload()
    assert page.evaluate("document.documentElement.classList.contains('dark')") is True
