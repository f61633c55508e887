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

STRICT = """{%- if messages[0].role == 'system' -%}{{- raise_exception('System role not supported') -}}{%- endif -%}
{%- for message in messages -%}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('Roles must alternate') -}}
    {%- endif -%}
    {{- '<turn>' + message.role + '\\n' + message.content | trim + '<end>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<turn>assistant\\n' -}}{%- endif -%}
"""
