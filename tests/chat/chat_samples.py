"""Small templates of our own, each with the habits of a real family."""

HERMES = """{{- bos_token -}}
{%- if tools -%}
    {{- '<|im_start|>system\\nTools:\\n' -}}
    {%- for tool in tools -%}{{- tool.function | tojson + '\\n' -}}{%- endfor -%}
    {{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' -}}
    {%- elif message.tool_calls -%}
        {{- '<|im_start|>assistant\\n' + message.content -}}
        {%- for call in message.tool_calls -%}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
            {{- call.function.arguments | tojson + '}\\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\\n' -}}
    {%- elif message.role == 'assistant' and message.reasoning_content -%}
        {{- '<|im_start|>assistant\\n<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' -}}
        {{- message.content + '<|im_end|>\\n' -}}
    {%- else -%}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' + ('' if enable_thinking is not defined else '<think>\\n') -}}
{%- endif -%}
"""

HERMES_APART = HERMES.replace("'<tool_call>", "'\\n<tool_call>")  # with a line break before each call


STRICT = """{%- if messages[0].role == 'system' -%}{{- raise_exception('System role not supported') -}}{%- endif -%}
{%- for message in messages -%}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('Roles must alternate') -}}
    {%- endif -%}
    {{- '<turn>' + message.role + '\\n' + message.content | trim + '<end>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<turn>assistant\\n' -}}{%- endif -%}
"""


def family(call: str, *, before: str = "", after: str = "", between: str = "", parallel: bool = True) -> str:
    """A template whose model writes calls in this way. `call` is Jinja that writes one call from `f`."""
    single = (
        ""
        if parallel
        else "{%- if m.tool_calls | length > 1 -%}{{- raise_exception('one call, please') -}}{%- endif -%}"
    )
    return (
        "{%- if tools -%}{{- '<|sys|>' + tools | tojson + '<|end|>' -}}{%- endif -%}"
        "{%- for m in messages -%}"
        "{%- if m.tool_calls -%}" + single + "{{- '<|bot|>' + m.content -}}" + before + "{%- for c in m.tool_calls -%}"
        "{%- set f = c.function -%}" + call + "{%- if not loop.last -%}" + between + "{%- endif -%}"
        "{%- endfor -%}" + after + "{{- '<|end|>' -}}"
        "{%- else -%}{{- '<|' + {'assistant': 'bot'}.get(m.role, m.role) + '|>' + m.content + '<|end|>' -}}{%- endif -%}"
        "{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|bot|>' -}}{%- endif -%}"
    )


_OBJECT = "{{- '{\"name\": \"' + f.name + '\", \"arguments\": ' + f.arguments | tojson + '}' -}}"
_PARAMETERS = "{%- for k, v in f.arguments.items() -%}{{- BEFORE + k + BETWEEN + (v if v is string else v | tojson) + AFTER -}}{%- endfor -%}"


def _tagged(before: str, between: str, after: str) -> str:
    return _PARAMETERS.replace("BEFORE", before).replace("BETWEEN", between).replace("AFTER", after)


_PAIRS = (
    "{%- for k, v in f.arguments.items() -%}{{- k + '=' + (v | tojson) -}}"
    "{%- if not loop.last -%}{{- ', ' -}}{%- endif -%}{%- endfor -%}"
)

FAMILIES: dict[str, str] = {
    "objects between tags": family(
        "{{- '<call>\\n' -}}" + _OBJECT + "{{- '\\n</call>' -}}", between="{{- '\\n' -}}"
    ),
    "a list of objects": family(_OBJECT, before="{{- '<CALLS>[' -}}", after="{{- ']</CALLS>' -}}", between="{{- ', ' -}}"),
    "an object alone": family(_OBJECT, parallel=False),
    "a list alone": family(_OBJECT, before="{{- '[' -}}", after="{{- ']' -}}", between="{{- ', ' -}}"),
    "names as keys": family(
        "{{- '{\"' + f.name + '\": ' + f.arguments | tojson + '}' -}}",
        before="{{- '<|calls|>[' -}}", after="{{- ']<|/calls|>' -}}", between="{{- ', ' -}}",
    ),
    "name, then object": family("{{- '[CALL]' + f.name + '[ARGS]' + f.arguments | tojson -}}"),
    "name and id, then object": family("{{- '[CALL]' + f.name + '[ID]' + c.id + '[ARGS]' + f.arguments | tojson -}}"),
    "a section of named calls": family(
        "{{- '<|call|>' + f.name + '<|sep|>' + f.arguments | tojson + '<|/call|>' -}}",
        before="{{- '<|calls|>' -}}", after="{{- '<|/calls|>' -}}",
    ),
    "fenced": family(
        "{{- '<|call|>' + f.name + '\\n```json\\n' + f.arguments | tojson + '\\n```<|/call|>' -}}",
        before="{{- '<|calls|>' -}}", after="{{- '<|/calls|>' -}}", between="{{- '\\n' -}}",
    ),
    "function tags": family("{{- '<fn=' + f.name + '>' + f.arguments | tojson + '</fn>' -}}"),
    "values on lines": family(
        "{{- '<call>\\n<fn=' + f.name + '>\\n' -}}" + _tagged("'<arg='", "'>\\n'", "'\\n</arg>\\n'")
        + "{{- '</fn>\\n</call>' -}}", between="{{- '\\n' -}}",
    ),
    "keys and values": family(
        "{{- '<call>' + f.name + '\\n' -}}"
        + _tagged("'<key>'", "'</key>\\n<value>'", "'</value>\\n'") + "{{- '</call>' -}}", between="{{- '\\n' -}}",
    ),
    "attributes": family(
        "{{- '<invoke name=\"' + f.name + '\">\\n' -}}"
        + _tagged("'<parameter name=\"'", "'\">'", "'</parameter>\\n'") + "{{- '</invoke>' -}}",
        before="{{- '<calls>\\n' -}}", after="{{- '\\n</calls>' -}}", between="{{- '\\n' -}}",
    ),
    "python": family(
        "{{- f.name + '(' -}}" + _PAIRS + "{{- ')' -}}",
        before="{{- '<|do|>[' -}}", after="{{- ']<|/do|>' -}}", between="{{- ', ' -}}",
    ),
    "python without marks": family(
        "{{- f.name + '(' -}}" + _PAIRS + "{{- ')' -}}",
        before="{{- '[' -}}", after="{{- ']' -}}", between="{{- ', ' -}}",
    ),
    "braces": family(
        "{{- '<do>call:' + f.name + '{' -}}{%- for k, v in f.arguments.items() -%}{{- k + ':<q>' ~ v ~ '<q>' -}}"
        "{%- if not loop.last -%}{{- ',' -}}{%- endif -%}{%- endfor -%}{{- '}</do>' -}}"
    ),
}  # fmt: skip
"""One template for each way of writing calls that a probe can learn."""


def _with_tools(turns: str, prompt: str) -> str:
    """A template of which only the assistant's turns and the start of a new one are given."""
    return (
        "{%- if tools -%}{{- '<|sys|>' + tools | tojson + '<|eot|>' -}}{%- endif -%}{%- for m in messages -%}"
        "{%- if m.role == 'assistant' -%}" + turns + "{%- else -%}"
        "{{- '<|' + m.role + '|>' + m.content + '<|eot|>' -}}{%- endif -%}{%- endfor -%}"
        "{%- if add_generation_prompt -%}" + prompt + "{%- endif -%}"
    )


def _blocks(text: tuple[str, str], thought: tuple[str, str], calls: str, opens: bool) -> str:
    """Blocks with marks of their own for text, thoughts and calls."""
    return _with_tools(
        "{{- '<|bot|>' -}}{%- if m.reasoning_content -%}{{- '"
        + thought[0]
        + "' + m.reasoning_content + '"
        + thought[1]
        + "' -}}{%- endif -%}{%- if m.tool_calls -%}"
        + calls
        + "{%- else -%}{{- '"
        + text[0]
        + "' + m.content + '"
        + text[1]
        + "' -}}{%- endif -%}{{- '<|eot|>' -}}",
        "{{- '<|bot|>" + (thought[0] if opens else "") + "' -}}",
    )


_NUMBERED = (
    '{{- \'<|DO|>[\' -}}{%- for c in m.tool_calls -%}{{- \'{"ref_id": "\' ~ loop.index0 ~ \'", "fn": "\' + c.function.name'
    " + '\", \"input\": ' + c.function.arguments | tojson + '}' -}}{%- if not loop.last -%}{{- ', ' -}}{%- endif -%}"
    "{%- endfor -%}{{- ']<|/DO|>' -}}"
)


def _letters(to: str, body: str, more: str, call: str, tools: str = "") -> str:
    """Messages with recipients."""
    start = "<|from|>bot"
    return _with_tools(
        "{%- if m.reasoning_content -%}{{- '"
        + start
        + to
        + "me"
        + body
        + "' + m.reasoning_content + '"
        + more
        + "' -}}{%- endif -%}{%- if m.tool_calls -%}{%- for c in m.tool_calls -%}{%- set f = c.function -%}"
        "{{- '"
        + start
        + to
        + tools
        + "' + f.name + '"
        + body
        + "' -}}"
        + call
        + "{{- '<|eot|>' if loop.last else '"
        + more
        + "' -}}{%- endfor -%}{%- else -%}"
        "{{- '" + start + to + "you" + body + "' + m.content + '<|eot|>' -}}{%- endif -%}",
        "{{- '" + start + "' -}}",
    )


_INVOKE = (
    "{{- '<go>\\n<do=\"' + f.name + '\">\\n' -}}"
    + _tagged("'<with=\"'", "'\">'", "'</with>\\n'")
    + "{{- '</do>\\n</go>' -}}"
)
_WRAPPED = (
    "{%- for k, v in f.arguments.items() -%}{%- if v is string -%}{{- '<p n=\"' + k + '\"><![CDATA[' + v + ']]></p>' -}}"
    "{%- else -%}{{- '<p n=\"' + k + '\">' + v | tojson + '</p>' -}}{%- endif -%}{%- endfor -%}"
)
_KINDS = (
    "{%- for k, v in f.arguments.items() -%}{{- '<p n=\"' + k + '\" kind=\"' + ('text' if v is string else 'data') + '\">'"
    " + (v if v is string else v | tojson) + '</p>' -}}{%- endfor -%}"
)

LEARNED_BY_MARKS: dict[str, str] = {
    "blocks": _blocks(("<|SAY|>", "<|/SAY|>"), ("<|MULL|>", "<|/MULL|>"), _NUMBERED, opens=False),
    "blocks, thinking": _blocks(("<say>", "</say>"), ("<mull>\\n", "\\n</mull>"), _NUMBERED, opens=True),
    "letters": _letters(" to=", "<|says|>", "<|next|>", _INVOKE),
    "letters to marks": _letters("<|to|>", "<|says|>", "<|next|>", _INVOKE),
    "letters with arguments": _letters(" @", "<|:|>", "<|+|>", "{{- f.arguments | tojson -}}", "fn."),
    "ends of roles": family("{{- '<call>' -}}" + _OBJECT + "{{- '</call>' -}}", between="{{- '\\n' -}}").replace(
        "<|end|>", "</turn>"
    ),
    "wrapped": family("{{- '<run=\"' + f.name + '\">' -}}" + _WRAPPED + "{{- '</run>' -}}", between="{{- '\\n' -}}"),
    "kinds": family("{{- '<run=\"' + f.name + '\">' -}}" + _KINDS + "{{- '</run>' -}}", between="{{- '\\n' -}}"),
}
"""Templates whose marks, names and order no table knows."""
