"""Writes tests/data/templates.json: what Jinja2 renders with Hugging Face's settings.

Run with the PyPI package `jinja2`: python3 templates.py > ../data/templates.json
Templates are tests/data/*.jinja and the snippets below. A case's result is its text, or what raised an exception.
"""
import datetime
import json
import pathlib

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW = datetime.datetime(2024, 7, 4, 9, 5, 3)


class Generation(jinja2.ext.Extension):
    """`generation` blocks render their body in a scope of their own."""
    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(lineno)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Dict:
    """What a template finds under the name `dict`."""
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["dict"] = Dict()
    env.globals["strftime_now"] = lambda fmt: NOW.strftime(fmt)
    return env


U = {"role": "user", "content": "Hi there"}
A = {"role": "assistant", "content": "Hello! "}
SYS = {"role": "system", "content": " Be brief.\n"}
TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather in a \u201ccity\u201d <b>&</b> 'more' \U0001f642",
    "parameters": {"type": "object", "properties": {"zoo": {"type": "string"}, "city": {"type": "string", "enum": ["K\u00f6ln", "\u6771\u4eac"]}},
                   "required": [], "extra": {}, "n": 1.5, "big": 1e15, "small": 1e-3, "yes": True, "no": None, "i": -3}}}
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "K\u00f6ln", "days": 2, "f": 1.0}}}]}
RESULT = {"role": "tool", "name": "get_weather", "content": "{\"t\": 21}"}
LONG = [U, A, {"role": "user", "content": "line 1\nline 2\n\n"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."},
        {"role": "user", "content": "caf\u00e9 \U0001f642 'quoted' \"double\" \\ back"}]
CONVERSATIONS = {
    "user": dict(messages=[U]),
    "system": dict(messages=[SYS, U]),
    "turns": dict(messages=LONG),
    "system_turns": dict(messages=[SYS] + LONG),
    "tools": dict(messages=[U], tools=[TOOL]),
    "system_tools": dict(messages=[SYS, U], tools=[TOOL, TOOL]),
    "calls": dict(messages=[U, CALL, RESULT, RESULT, A, U], tools=[TOOL]),
    "order": dict(messages=[A, A, U, U]),
    "parts": dict(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]),
    "null": dict(messages=[U, {"role": "assistant", "content": None}, U]),
    "empty": dict(messages=[{"role": "user", "content": ""}]),
    "spaces": dict(messages=[{"role": "user", "content": " \n\t x \n"}]),
    "unknown_role": dict(messages=[{"role": "narrator", "content": "x"}]),
    "none": dict(messages=[]),
}
SNIPPETS = [
    "{{ bos_token }}{{ eos_token }}|{{ missing }}|{{ tools }}|{{ none }}|{{ true }}|{{ 1.0 }}|{{ 1e20 }}|{{ 1.5e-7 }}|{{ 1e22 | tojson }}|{{ 1e-7 | tojson }}|{{ [1, 'a', none, true, 1.5] }}|{{ {'a': 'b\"c', 'd': [1]} }}|{{ (1, 2) }}",
    "{{ messages | tojson }}\n{{ messages | tojson(indent=2) }}\n{{ messages | tojson(separators=(',', ':')) }}\n{{ messages | tojson(ensure_ascii=True, sort_keys=True) }}",
    "{{ tools | tojson(indent=4) }}|{{ tools | tojson(indent=0) }}|{{ [] | tojson(indent=2) }}|{{ {} | tojson }}|{{ '</b>&\\u0007\\x7f' | tojson }}",
    "{% for m in messages %}\n  {%- if m.role == 'user' -%}\n    U:{{ m.content }}\n  {%- else %}\n    O:{{ m.content }}\n  {% endif %}\n{% endfor %}\nend\n",
    "a\n  {% if true %}\n  b\n  {% endif %}\nc {# comment #}\n  {# comment #}\nd\n\n",
    "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{% if m.role == 'assistant' %}{% continue %}{% endif %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem is defined }}{{ loop.nextitem.role }}{% endfor %}",
    "{% if messages and messages[0].role != 'user' %}{{ raise_exception('Roles must alternate: ' + messages[0].role) }}{% endif %}ok",
    "{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%Y-%m-%d %H:%M:%S') }}|{{ strftime_now('%A %B %-d %j %I %p %y %a %e %F %T %%') }}",
    "{% set ns = namespace(n=0, s='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.s = ns.s ~ m.role[0] %}{% endfor %}{{ ns.n }}{{ ns.s }}",
    "{% for m in messages %}{% if m.content is string %}{{ m.content | trim }}|{{ m.content.strip() }}|{{ m.content.lstrip('\\n').rstrip() }}|{{ m.content.split('\\n') }}|{{ m.content.replace('i', 'I') }}|{{ m.content.upper() }}|{{ m.content.startswith('H') }}|{{ m.content[:3] }}|{{ m.content[::-1] }}|{{ m.content | length }}{% else %}{{ m.content is none }}{{ m.content is iterable }}{{ m.content is mapping }}{% endif %};{% endfor %}",
    "{% for m in messages[::-1] %}{{ m.role }},{% endfor %}{{ messages[1:] | length }}{{ messages[:-1] | length }}{{ (messages | last).role }}{{ messages | map(attribute='role') | join('/') }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | rejectattr('role', 'in', ['user']) | map(attribute='role') | list }}{{ messages | groupby('role') | length }}",
    "{% macro show(m, mark='#') %}{{ mark }}{{ m.role }}{{ caller() if caller else '' }}{% endmacro %}{% for m in messages %}{{ show(m) }}{{ show(m, mark='*') }}{% call show(m) %}!{% endcall %}{% endfor %}",
    "{% generation %}{{ messages | length }}{% endgeneration %}|{%- generation -%}\n x \n{%- endgeneration -%}\n|",
    "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
    "{{ messages[0]['content'] }}{{ messages[0].missing is defined }}{{ messages[5] is defined }}{{ messages[0].get('role') }}{{ messages[0].get('nope', 'dflt') }}{{ 'role' in messages[0] }}{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}",
    "{{ missing.attribute }}",
    "{{ messages[0].content.nope.nope }}",
    "{{ missing + 'x' }}",
    "{% for x in missing %}{{ x }}{% else %}nothing{% endfor %}{% if missing %}1{% endif %}{{ missing is defined }}{{ missing | default('d') }}{{ '' | default('e', true) }}{{ 'x' in missing }}{{ missing == missing }}{{ missing is none }}",
    "{{ 7 // 2 }}{{ -7 // 2 }}{{ 7 / 2 }}{{ 4 / 2 }}{{ 7 % 3 }}{{ -7 % 3 }}{{ 2 ** 10 }}{{ 2 ** 0.5 }}{{ 1 + 1.5 }}{{ '3' | int + 1 }}{{ '2.5' | float }}{{ 3.7 | round }}{{ 3 | round }}{{ 10 | string + 'x' }}{{ 'ab' * 3 }}{{ 1 == 1.0 }}{{ 1 < 2 < 3 }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ [1] }}{{ 'a,b,c'.split(',') | join('-') }}{{ 'abc' | upper }}{{ 'Abc' | lower }}{{ 'abc def' | title }}{{ 'abc' | capitalize }}{{ ' x ' | trim | length }}{{ 'x' | indent(4) }}{{ 'a\\nb' | indent(2) }}{{ 'a\\nb' | indent(2, true) }}{{ [3, 1, 2] | sort }}{{ [1, 2, 3] | reverse | list }}{{ [1, 1, 2] | unique | list }}{{ [1, 2] | sum }}{{ [1, 2] | first }}{{ {'b': 1, 'a': 2} | dictsort }}{{ {'b': 1} | items | list }}{{ range(3) | list }}{{ [[1, 2], [3]] | length }}",
    "{{ '%s is %d' | format('x', 3) }}{{ 'a{}b{x}'.format(1, x=2) }}{{ 'abc'.find('c') }}{{ 'x-y-z'.rsplit('-', 1) }}{{ 'a=b=c'.partition('=') }}{{ 'a=b=c'.rpartition('=') }}{{ 'abc'.removeprefix('a').removesuffix('c') }}{{ 'a b  c'.split() }}{{ 'a\\nb'.splitlines() }}{{ 'abc'.isalpha() }}{{ 'aXbX'.count('X') }}{{ 'ab'.title() }}{{ 'Ab'.swapcase() if false else '' }}{{ '\\u00e9\\x41\\t|' }}",
    "{{ 'a' if messages | length > 3 else 'b' }}{{ 'x' if false }}{{ (messages | length > 1 and 'many') or 'one' }}{{ not messages }}{{ 1 if messages is sequence and messages is not string and messages is not mapping }}{{ 'x' is sequence }}{{ 'x' is iterable }}{{ 1 is number }}{{ 1.0 is float }}{{ 1 is integer }}{{ true is boolean }}{{ none is none }}{{ [] is mapping }}{{ {} is mapping }}{{ 3 is odd }}{{ 4 is divisibleby 2 }}{{ 'a' is in ['a'] }}{{ messages is callable }}{{ messages[0] is sequence }}{{ missing is sequence }}{{ missing is iterable }}{{ none is sequence }}{{ 1 is iterable }}",
    "{% set content %}x{{ messages | length }}y{% endset %}{{ content }}{% set a, b = (1, 2) %}{{ a }}{{ b }}{% filter upper %}abc{% endfilter %}{% with q = 5 %}{{ q }}{% endwith %}{{ q }}{% raw %}{{ not }}{% endraw %}",
    "{%- for m in messages if m.role == 'user' %}{{ loop.index }}{% else %}none{% endfor -%}\n\n{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{% endfor %}{% for k in {'x': 1, 'y': 2} %}{{ k }}{% endfor %}{% for i in range(1, 10, 3) %}{{ loop.cycle('o', 'e') }}{{ i }}{% endfor %}",
    "{% set loop_messages = messages %}{% if messages and messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{% set loop_messages = messages[1:] %}{% else %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "{{- bos_token }}\n{%- if custom_tools is defined %}\n    {%- set tools = custom_tools %}\n{%- endif %}\n{%- if not date_string is defined %}\n    {%- if strftime_now is defined %}\n        {%- set date_string = strftime_now(\"%d %b %Y\") %}\n    {%- else %}\n        {%- set date_string = \"26 Jul 2024\" %}\n    {%- endif %}\n{%- endif %}\n{{- date_string }}\n{%- if messages and messages[0]['role'] == 'system' %}\n    {%- set system_message = messages[0]['content']|trim %}\n    {%- set messages = messages[1:] %}\n{%- else %}\n    {%- set system_message = \"\" %}\n{%- endif %}\n{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" + system_message + \"<|eot_id|>\" }}\n{%- for message in messages %}\n    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}\n        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}\n        {%- if message.content is string %}{{- message.content | trim + '<|eot_id|>' }}{% endif %}\n    {%- elif 'tool_calls' in message %}\n        {{- '{\"name\": \"' + message.tool_calls[0].function.name + '\", \"parameters\": ' }}\n        {{- message.tool_calls[0].function.arguments | tojson }}\n        {{- \"}\" }}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n",
    "{%- for message in messages %}{%- if message.role == 'assistant' %}{%- set content = message.content or '' %}{%- set reasoning = '' %}{%- if '</think>' in content %}{%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}{{- '<|im_start|>assistant\\n[' + reasoning + ']' + content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}{{ enable_thinking is defined and enable_thinking is false }}",
    "{% for x in none %}{{ x }}{% endfor %}",
    "{% for p in messages[-1].content %}[{{ p }}]{% else %}empty{% endfor %}",
    "{% raw %}\n{{ x }}{% endraw %}\n|{%- raw -%}\n y {% endraw %}\n\nz",
    "{{ 'a\\n' | indent }}|{{ '{\\n' | indent(4, first=true) }}|{{ 'a\\n\\nb\\n' | indent(2) }}|{{ 'a\\n\\nb' | indent('> ', true, true) }}|{{ '' | indent }}|{{ 'a\\r\\nb' | indent(1) }}",
    "{{ 1e-7 | string }}|{{ [1e-7, 1e16, 2.0] }}|{{ {'a': 1e-5} | string }}|{{ 1e-5 }}|{{ (1,) }}|{{ (1, 'a') }}|{{ ['it\\'s', 'a\\u200b\\u00a0\\x00'] }}|{{ 12 | string }}|{{ none | string }}",
    "{{ \"they're <|IM_END|> b-c (d) [e\".title() }}|{{ \"they're <|IM_END|> b-c (d) [e\" | title }}|{{ '\u00df\u00c9 X'.capitalize() }}|{{ '\u00df\u00c9 X' | capitalize }}|{{ 'aB'.swapcase() }}|{{ 'aB'.casefold() }}",
    "{% set roles = messages | map(attribute='role') %}{{ roles is sequence }}{{ roles is iterable }}{% if [] | map('upper') %}true{% endif %}{% for r in roles %}{{ r }}{{ loop.last }}{% endfor %}|{% for r in roles %}again{% endfor %}",
    "{{ messages | map(attribute='role') | tojson }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | length }}",
    "{{ (messages + messages) | tojson }}{{ (messages + []) is sequence }}{{ range(3) is sequence }}",
    "{{ 'abcabc'.index('c') }}{{ 'abcabc'.rindex('c') }}{{ 'abcabc'.find('c', 3) }}{{ 'abcabc'.find('c', -2, -1) }}{{ 'abcabc'.rfind('z') }}{{ '7'.zfill(3) }}{{ '-7'.zfill(4) }}{{ 'a'.center(4, '*') }}{{ 'ab'.center(5, '*') }}{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '.') }}{{ 'a\\r\\nb\\x0bc'.splitlines() }}{{ 'a\\nb\\n'.splitlines(true) }}{{ ' a \\x1f b\\u00a0'.split() }}{{ [1, 2].index(2) }}{{ [1, 1].count(1) }}",
    "{{ 'abc'.index('x') }}",
    "{{ dict(a=1, b='x') | tojson }}{{ namespace is defined }}",
    "{{ 'a b' | split }}",
    "{% macro m(a, b='x', c=none) -%}\n  {{ a }}{{ b }}{{ c is none }}{{ d is defined }}\n{%- endmacro %}{{ m(1) }}{{ m(1, c=2) }}{% macro n() %}\n n\n{% endmacro %}{{ n() }}",
]
FLAGS = [True, False]


def outcome(env, source, conversation, generate):
    try:
        text = env.from_string(source).render(
            bos_token="<s>", eos_token="</s>", documents=None, **{"tools": None, **conversation}, add_generation_prompt=generate)
        return {"text": text}
    except jinja2.exceptions.TemplateError as error:
        if type(error) is jinja2.exceptions.TemplateError:
            return {"raised": str(error)}
        return {"error": type(error).__name__}
    except Exception as error:  # what Python itself objects to, such as None + str
        return {"error": type(error).__name__}


def main():
    env = environment()
    data = pathlib.Path(__file__).resolve().parent.parent / "data"
    files = sorted(data.glob("*.jinja"))
    sources = [(path.name, path.read_text()) for path in files] + [(f"snippet {at}", source) for at, source in enumerate(SNIPPETS)]
    templates = [{"name": name, "source": source, "results": {
        key: [outcome(env, source, conversation, generate) for generate in (FLAGS if name.endswith(".jinja") or "add_gen" in source else [True])]
        for key, conversation in CONVERSATIONS.items()}} for name, source in sources]
    print(json.dumps({"conversations": CONVERSATIONS, "templates": templates}, ensure_ascii=True, indent=1))


if __name__ == "__main__":
    main()
