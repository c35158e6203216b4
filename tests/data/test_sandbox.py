"""A stranger's chat template: the real ones say what Jinja says, and the hostile ones run out of their budget."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from scdd.core.errors import UserError
from scdd.data.chat import LONGEST_TEMPLATE, ChatTemplate

from ..tiny import tokenizer

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are "
    "helpful.<|im_end|>\n' }}{% endif %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    "'\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA = """{{- bos_token }}
{%- if not tools_in_user_message is defined %}{%- set tools_in_user_message = true %}{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif message.role in ["tool", "ipython"] %}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""
MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and
    message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("conversation roles must alternate user/assistant") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}{{- "[AVAILABLE_TOOLS]" }}{%- endif %}
        {%- if loop.last and system_message is defined %}{{- "[INST] " + system_message + "\\n\\n" + message["content"] +
        "[/INST]" }}{%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
    {%- elif message["role"] == "assistant" %}{{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}"""
QWEN = """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and
    not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' +
            content.lstrip('\\n') }}
        {%- else %}{{- '<|im_start|>' + message.role + '\\n' + content }}{%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
ZEPHYR = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + eos_token "
    "}}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif "
    "message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n{% if "
    "loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
ODDS = """{% macro shown(value, depth=0) %}{% if value is mapping %}{% for k, v in value|dictsort %}{{ k|upper }}={{
shown(v, depth + 1) }};{% endfor %}{% elif value is string %}{{ value|tojson }}{% else %}{{ value }}{% endif %}{% endmacro %}
{% set info = {'b': 1, 'a': {'x': [1, 2.5, none, true], 'y': 'é\\n'}, 3: 'c'} %}
{{ info|tojson }}{{ {'a': [1, {}]}|tojson(indent=2) }}{{ info.a.x[1:] ~ info['a']['y'] ~ 7 }}{{ shown(info.a) }}
{{ [3, 1, 2]|sort(reverse=true)|join('-') }}{{ ['b', 'A', 'c']|sort|first }}{{ [1, 2, 3]|sum + [4, 9]|max - [4, 9]|min }}
{{ messages|map(attribute='role')|list }}{{ messages|map('length')|join(',') }}{{ messages|rejectattr('role', 'eq', 'user')
|map(attribute='content')|map('trim')|join('|') }}{{ messages|selectattr('role', 'in', ['user', 'system'])|list|length }}
{{ 'a-b-c'.replace('-', '+', 1)|title }}{{ 'x y  z'.split() }}{{ 'x,y'.split(',', 1)|last }}{{ ' a '.strip() + 'b'.upper() }}
{{ undefined_thing|default('none') }}{{ ''|default(default_value='empty', boolean=true) }}{{ [1, 2]|join(d='+') }}{{ 'xax'|trim(chars='x') }}{{ '12'|int + '1.5'|float }}{{ 7 // 2 }}{{ 7 % 4 * 2 ** 3 }}
{{ 1 < 2 < 3 }}{{ 3 not in [1, 2] }}{{ 'a' in 'cab' }}{{ 'role' in messages[0] }}{{ -5|abs }}{{ 2.567|round(1) }}{{ (1, 2) + (3,) }}
{% for k, v in {'p': 1, 'q': 2}.items() %}{{ loop.index }}{{ loop.cycle('x', 'y') }}{{ k }}{{ v }}{{ loop.revindex0 }}{% endfor %}
{% for n in range(9) if n is odd %}{% if n > 5 %}{% break %}{% endif %}{{ n }}{{ loop.last }}{{ loop.previtem }}{% else %}no{% endfor %}
{% for x in [[1, [2]], [3]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}{% for c in 'abc'|reverse %}{{ c }}{% endfor %}
{% set block %}in {{ messages|length }}{% endset %}{{ block|replace('in', 'out') }}{% filter upper %}up{% endfilter %}
{% macro box() %}[{{ caller() }}]{% endmacro %}{% call box() %}x{% endcall %}{% with z = 3 %}{{ z }}{% endwith %}{{ 'yes' if messages else 'no' }}{{ messages[9] is defined }}
{{ dict(a=1).get('b', 'none') }}{{ namespace(a=4).a }}{{ [1, 2] == [1, 2] }}{{ 'abc'[::-1] }}{{ messages[-1:][0].role }}{{ 8|string ~ 1 }}
{{ 'A-B'.lower().startswith('a') }}{{ 'abc'.find('c') }}{{ 'ab\\ncd'.splitlines()|join('/') }}{{ 'ab'|capitalize }}{{ '%'|safe }}"""
REAL = {"chatml": CHATML, "llama": LLAMA, "mistral": MISTRAL, "qwen": QWEN, "zephyr": ZEPHYR, "odds": ODDS}


def jinja(text: str, messages: list[dict[str, str]], answer: bool) -> str:
    """What Jinja renders, as transformers asks it to."""

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = refuse
    own = tokenizer()
    known = {"bos_token": own.bos, "eos_token": own.eos, "tools": None, "documents": None}
    return environment.from_string(text).render(messages=messages, add_generation_prompt=answer, **known)


CONTENTS = st.text(
    st.characters(exclude_characters="\ue000", exclude_categories=["Cs"]), max_size=20
) | st.sampled_from(["<think>\nwell\n</think>\n\nyes", " trimmed \n", "<tool_response>x</tool_response>"])
CHATS = st.builds(
    lambda system, turns: (
        system + [m for u, a in turns for m in ({"role": "user", "content": u}, {"role": "assistant", "content": a})]
    ),
    st.lists(st.builds(lambda text: {"role": "system", "content": text}, CONTENTS), max_size=1),
    st.lists(st.tuples(CONTENTS, CONTENTS), min_size=1, max_size=4),
)


@pytest.mark.parametrize("name", REAL)
@settings(max_examples=20, deadline=None)
@given(messages=CHATS, answer=st.booleans())
def test_real_templates_say_what_jinja_says(name: str, messages: list[dict[str, str]], answer: bool) -> None:
    plain = [m for m in messages if not any(each in m["content"] for each in tokenizer().special_tokens)]
    if plain != messages:
        return  # such names are escaped, which Jinja knows nothing of
    assert ChatTemplate(REAL[name], tokenizer()).render(messages, answer) == jinja(REAL[name], messages, answer)


def test_long_chats_are_rendered() -> None:
    word = "the river runs to the sea, 日本 "
    many = [{"role": role, "content": word * 8} for _ in range(512) for role in ("user", "assistant")]
    large = [
        {"role": "user", "content": word * 30_000},
        {"role": "assistant", "content": "<think>a</think>" + word * 30_000},
    ]
    for messages in (many, large):
        for name in ("chatml", "llama", "mistral", "qwen", "zephyr"):
            assert word * 7 in ChatTemplate(REAL[name], tokenizer()).render(messages, answer=True)


TWICE = "{% set ns = namespace(t=1) %}{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}"
FOREVER = "{% for i in range(100000) %}{% for j in range(100000) %}"
END = "{% endfor %}{% endfor %}"
HOSTILE = {
    "squares": "{% set ns = namespace(a=9) %}{% for i in range(40) %}{% set ns.a = ns.a * ns.a %}{% endfor %}x",
    "powers": "{% set a=9**64 %}" + "{% set a=a**64 %}" * 4,
    "lipsum": "{% if lipsum(n=3000000) %}x{% endif %}",
    "sorts": "{% set l = [3, 1] * 2000000 %}{% for i in range(1000) %}{% if l|sort %}{% endif %}{% endfor %}",
    "indent": "{{ [1]|tojson(indent=1000000000) }}",
    "texts": "{% set ns = namespace(l=[]) %}{% for i in range(1500) %}{% set ns.l = [ns.l, 'a' * 4000000] %}{% endfor %}",
    "replaced": "{{ ('a'*4000000).replace('a', 'b'*400) }}",
    "joined": "{{ ('b'*1000000).join(('a'*2000)|list) }}",
    "replace": "{{ ('a'*4000000)|replace('a', 'b'*400) }}",
    "join": "{{ ('a'*2000)|list|join('b'*1000000) }}",
    "shown": TWICE + "{{ ns.t }}",
    "json": TWICE + "{{ ns.t|tojson }}",
    "compared": TWICE + TWICE.replace("ns", "us") + "{{ ns.t == us.t }}",
    "changed": TWICE
    + TWICE.replace("ns", "us")
    + "{% for i in [1, 2] %}{{ loop.changed(ns.t if i > 1 else us.t) }}{% endfor %}",
    "namespaces": TWICE.replace("(ns.t, ns.t)", "namespace(a=ns.t, b=ns.t)") + "{{ [ns.t] }}",
    "empty lists": "{% set ns = namespace(l=[]) %}" + FOREVER + "{% set ns.l = [ns.l" + ", []" * 16_000 + "] %}" + END,
    "key": TWICE + "{{ {ns.t: 1} }}",
    "item": TWICE + "{{ {}[ns.t] }}",
    "got": TWICE + "{{ {}.get(ns.t) }}",
    "within": TWICE + "{{ ns.t in {} }}",
    "by": TWICE + "{{ {}|dictsort(by=ns.t) }}",
    "slices": "{% set s = 'a' * 4000000 %}" + FOREVER + "{% set t = s[1:] %}" + END,
    "searches": "{% set s = 'a' * 2499 %}{% set t = 'a' * 1200 ~ 'b' %}" + FOREVER + "{% if t in s %}{% endif %}" + END,
    "backwards": "{% set s = 'a' * 2000000 %}{{ s.rfind('b' ~ 'a' * 1000000) }}",
    "strips": "{% set s = 'a' * 2000000 %}{{ s.strip('b' * 1000000 ~ 'a') }}",
    "long lines": FOREVER + "{% set t = [" + "0, " * 9000 + "] %}" + END,
    "stars": "{% set l = [1] * 4000000 %}" + FOREVER + "{% set t = dict(*l) %}" + END,
    "keys of one hash": FOREVER
    + "{% set d = {"
    + ", ".join(f"{(2**61 - 1) * i}: 0" for i in range(2000))
    + "} %}"
    + END,
    "formatted by a test": "{{ '%0999999999d' is odd }}",
    "formatted": "{{ '%0999999999s' % nothing }}",
    "ranges": FOREVER + "{% if 'x' in range(100000) %}{% endif %}" + END,
    "deep": "{% set ns = namespace(l=[]) %}" + FOREVER + "{% set ns.l = [ns.l] %}" + END,
    "brackets": "{{ " + "(" * 30_000 + "1" + ")" * 30_000 + " }}",
    **(
        {"a long number": "{{ " + "9" * 60_000 + " }}"} if hasattr(sys, "get_int_max_str_digits") else {}
    ),  # from 3.10.7 on
    "long": "x" * (LONGEST_TEMPLATE + 1),
    "blocks": "{% block a %}{{ self.a() }}{% endblock %}",
    "escapes": "{% autoescape true %}{{ '<' * 1000 }}{% endautoescape %}",
    "a long reason": "{{ raise_exception('a' * 10000000) }}",
}
ALONE = """
import resource, sys
from scdd.core.errors import UserError
from scdd.data.chat import ChatTemplate
from tests.data.test_sandbox import HOSTILE
from tests.tiny import tokenizer
own = tokenizer()
ChatTemplate("x", own).render([])
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (256 << 20), resource.RLIM_INFINITY))
for name, text in HOSTILE.items():
    print(name, flush=True)
    spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    try:
        ChatTemplate(text, own).render([{"role": "user", "content": "hi"}])
        sys.exit("was rendered")
    except UserError as error:
        assert str(error).startswith("chat_template ") and len(str(error)) < 500, error
        assert "MemoryError" not in str(error), error
    spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime - spent
    assert spent < 5, spent
"""


def test_hostile_templates_are_refused_in_a_little_time_and_memory() -> None:
    """In a process of its own: what hangs in C hears no signal. Its memory is 256 MiB more than it began with."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=60, check=False, env={**os.environ}
    )
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]}: {done.stderr[-2000:]}"
    assert done.stdout.split("\n")[:-1] == list(HOSTILE)


PIECES = st.sampled_from(
    [
        *(
            "1",
            "2.5",
            "'a b'",
            "none",
            "[1, 'x']",
            "messages",
            "messages[0]",
            "nothing",
            "(1, 2)",
            "{'k': 'v'}",
            "range(3)",
            "''",
        ),
        *("messages[0].content", "true", "-1", "[[2], [1]]", "'é'"),
    ]
)
OPERATORS = st.sampled_from(
    ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
)
SUFFIXES = st.sampled_from(
    [
        *(
            "|length",
            "|list",
            "|string",
            "|tojson",
            "|first",
            "|last",
            "|join(',')",
            "|upper",
            "|trim",
            "|default('d')",
            "|int",
        ),
        *(
            "[0]",
            "[1:]",
            "[::-1]",
            ".k",
            "['k']",
            ".upper()",
            ".split()",
            ".items()",
            "|sort",
            "|reverse|list",
            "|sum",
            "|max",
        ),
        *(
            "|map('string')|list",
            "|select|list",
            "|float",
            "|abs",
            "|round",
            "|title",
            ".get('k')",
            "|replace('a', 'b')",
            "|items|list",
        ),
        *(
            " is defined",
            " is string",
            " is mapping",
            " is iterable",
            " is number",
            " is none",
            " is sequence",
            ".strip('a')",
        ),
    ]
)
EXPRESSIONS = st.recursive(
    PIECES,
    lambda inner: (
        st.builds("({} {} {})".format, inner, OPERATORS, inner)
        | st.builds("({}){}".format, inner, SUFFIXES)
        | st.builds("({} if {} else {})".format, inner, inner, inner)
    ),
    max_leaves=4,
)


def outcome(render: Callable[[], str]) -> Any:
    try:
        return render()
    except (UserError, Exception):
        return None


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS)
@example("(1)|round")
@example("(17)|round(-1)")
@example("(2.5)|round(0, 'ceil')")
@example("('a b')|round")
def test_what_the_sandbox_computes_jinja_computes(expression: str) -> None:
    """It may refuse what Jinja does (a text formatted with %, `int.real`), but never says otherwise."""
    chat, text = [{"role": "user", "content": "hi you"}], f"{{{{ {expression} }}}}"
    ours = outcome(lambda: ChatTemplate(text, tokenizer()).render(chat))
    if ours is not None and "<" not in ours and " object" not in (outcome(lambda: jinja(text, chat, False)) or ""):
        assert ours == jinja(text, chat, False)
