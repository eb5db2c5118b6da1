"""Chat templates, against transformers' own rendering."""

from __future__ import annotations

from typing import Any

import pytest

from python_llm.errors import InvalidRequestError
from python_llm.tokenization.chat import render_chat
from toy_tokenizer import toy_tokenizer

USER = {"role": "user", "content": "<b>héllo</b> & 'you'"}
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [USER],
    [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "Hi."}, USER],
    [{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": "é"}}}]}],
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "<f> né", "parameters": {"b": 1, "a": [2]}}}]
TEMPLATES = [
    "{% for m in messages %}\n  {% if loop.first %}{{ bos_token }}{% endif %}\n{{ m.role }}: {{ m.content }}"
    "{{ eos_token }}\n{% endfor %}\n{% if add_generation_prompt %}assistant:{% endif %}",
    "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.role }}{% break %}{% endfor %}",
    "{{ messages | tojson }}{{ tools | tojson(indent=2) }}{{ tools | tojson(separators=(',', ':'), sort_keys=True) }}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}{{ thinking }}",
    "{% if tools %}{{ tools[0].function.name }}{% else %}none{% endif %}{{ documents }}",
    "{{ messages[0].content | default('x') | trim | upper }}"
    "{%- if messages[0]['tool_calls'] is defined %}calls{% endif %}",
]


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_as_transformers_renders(
    template: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    for prompt in (True, False):
        extra = {"thinking": True}
        expected = render_jinja_template(
            [messages],
            tools,
            chat_template=template,
            add_generation_prompt=prompt,
            bos_token="<bos>",
            eos_token="<eos>",
            **extra,
        )[0][0]
        tokenizer = toy_tokenizer(template)
        assert render_chat(tokenizer, messages, tools, add_generation_prompt=prompt, variables=extra) == expected


def test_messages_with_tools_take_the_template_for_tools() -> None:
    tokenizer = toy_tokenizer("plain {{ tools }}", tool_template="tools {{ tools[0].function.name }}")
    assert render_chat(tokenizer, [USER], TOOLS) == "tools f"
    assert render_chat(tokenizer, [USER]) == render_chat(tokenizer, [USER], []) == "plain None"
    assert render_chat(toy_tokenizer("{{ tools[0].function.name }}"), [USER], TOOLS) == "f"
    with pytest.raises(InvalidRequestError, match="only chat template is for messages with tools"):
        render_chat(toy_tokenizer(None, tool_template="x"), [USER])


def test_the_prompt_encodes_with_its_special_tokens() -> None:
    tokenizer = toy_tokenizer()
    prompt = render_chat(tokenizer, [{"role": "user", "content": "hi"}])
    assert prompt == "<bos>user: hi\nassistant: "
    assert tokenizer.encode(prompt, add_special_tokens=False)[0] == tokenizer.bos_token_id


def test_text_parts_are_joined_by_lines() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert render_chat(toy_tokenizer("{{ messages[0].content }}"), [{"role": "user", "content": parts}]) == "one\ntwo"


def test_arguments_in_a_json_string_become_an_object() -> None:
    template = "{{ messages[0].tool_calls[0].function.arguments.x }}"
    call = {"type": "function", "function": {"name": "f", "arguments": '{"x": 5}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    assert render_chat(toy_tokenizer(template), messages) == "5"
    assert call["function"] == {"name": "f", "arguments": '{"x": 5}'}


def test_null_is_as_good_as_absent() -> None:
    template = "{{ messages[0].name is defined }} {{ messages[0].content }}"
    assert render_chat(toy_tokenizer(template), [{**USER, "content": "x", "name": None}]) == "False x"


def test_date() -> None:
    assert render_chat(toy_tokenizer("{{ strftime_now('%Y') | length }}"), [USER]) == "4"


def test_model_without_template() -> None:
    with pytest.raises(InvalidRequestError, match="no chat template"):
        render_chat(toy_tokenizer(None), [USER])


def test_the_templates_own_refusal_reaches_the_client() -> None:
    with pytest.raises(InvalidRequestError, match=r"refuses these messages: Roles must alternate\."):
        render_chat(toy_tokenizer(), [USER, USER])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for %}", "not valid"),
        ("{{ messages[0].content.no.such.thing }}", "UndefinedError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
    ],
)
def test_failing_templates_are_errors_of_the_request(template: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        render_chat(toy_tokenizer(template), [USER])


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (None, "messages must be a non-empty list of objects, got None"),
        ([], "non-empty"),
        ("hi", "got 'hi'"),
        ({"role": "user"}, "non-empty list"),
        (["hi"], r"messages\[0\] must be an object"),
        ([USER, {"content": "x"}], r"messages\[1\]\.role must be a string, got None"),
        ([{"role": 3, "content": "x"}], "role must be a string, got 3"),
        ([{"role": "user"}], r"messages\[0\]\.content must be"),
        ([{"role": "user", "content": None}], "content must be"),
        ([{"role": "user", "content": 5}], "got 5"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], "content must be"),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            r"content\[0\]: only parts of type 'text'.*'image_url'",
        ),
        ([{"role": "user", "content": ["x"]}], "only parts of type 'text'"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "text must be a string"),
        ([{"role": "assistant", "tool_calls": "f"}], "tool_calls must be a list"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}],
            r"tool_calls\[0\]\.function\.arguments must be JSON",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"arguments": "[" * 100_000}}]}],
            r"tool_calls\[0\]\.function\.arguments must be JSON",
        ),
    ],
)
def test_malformed_messages(messages: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        render_chat(toy_tokenizer(), messages)


@pytest.mark.parametrize("tools", ["f", {"a": 1}, ["f"]])
def test_malformed_tools(tools: Any) -> None:
    with pytest.raises(InvalidRequestError, match="tools must be a list of objects"):
        render_chat(toy_tokenizer(), [USER], tools)


def test_variables_cannot_replace_the_messages() -> None:
    with pytest.raises(InvalidRequestError, match="cannot be called messages"):
        render_chat(toy_tokenizer(), [USER], variables={"messages": []})
