"""Thirty ways of writing turns that the learner was not made with: each a template of its own.

They were written down before anyone looked at how the learner works, after what vendors, agents and other
programs do: elements, fences, YAML, shell words, Python, tokens per argument. They are not to be tuned.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """`calls` is Jinja for the calls of the message `m`; `thought` is what stands around one, `prompt` what opens a turn."""

    calls: str
    thought: tuple[str, str] | None = None
    opening: str = "<|im_start|>assistant\n"
    prompt: str | None = None  # where the prompt says more or less than `opening`
    end: str = "<|im_end|>\n"
    other: tuple[str, str] = ("<|im_start|>{}\n", "<|im_end|>\n")
    text: tuple[str, str] = ("", "")
    lines: bool = False  # a text of several lines cannot be written here
    apart: bool = False  # words and calls are never in one turn
    instructions: str = "You may call these tools:\n"

    @property
    def source(self) -> str:
        before, after = (repr(part) for part in self.other)
        thought = ""
        if self.thought:
            thought = (
                "{%- if m.reasoning_content %}{{- "
                + repr(self.thought[0])
                + " + m.reasoning_content + "
                + repr(self.thought[1])
                + " }}{%- endif %}"
            )
        return (
            "{%- if tools %}{{- " + before.replace("{}", "system") + " + " + repr(self.instructions) + " }}"
            "{%- for t in tools %}{{- t.function | tojson + '\\n' }}{%- endfor %}{{- " + after + " }}{%- endif %}"
            "{%- for m in messages %}{%- if m.role == 'assistant' %}"
            "{{- "
            + repr(self.opening)
            + " }}"
            + thought
            + "{%- if m.content %}{{- "
            + repr(self.text[0])
            + " + m.content + "
            + repr(self.text[1])
            + " }}{%- endif %}"
            "{%- if m.tool_calls %}" + self.calls + "{%- endif %}"
            "{{- " + repr(self.end) + " }}"
            "{%- else %}{{- " + before.replace("{}", "' + m.role + '") + " + m.content + " + after + " }}{%- endif %}"
            "{%- endfor %}{%- if add_generation_prompt %}{{- " + repr(self.prompt or self.opening) + " }}{%- endif %}"
        )


def calls(one: str, *, before: str = "", between: str = "", after: str = "") -> str:
    """Jinja that writes each call `f` by `one`, with texts around and between."""
    return (
        "{{- "
        + repr(before)
        + " }}{%- for c in m.tool_calls %}{%- set f = c.function %}"
        + one
        + "{%- if not loop.last %}{{- "
        + repr(between)
        + " }}{%- endif %}{%- endfor %}{{- "
        + repr(after)
        + " }}"
    )


def write(*parts: str) -> str:
    """Texts as they are; `NAME`, `JSON`, `ID` and other words of Jinja in capitals stand for what they say."""
    words = {
        "NAME": "f.name", "JSON": "f.arguments | tojson", "ID": "c.id", "KEY": "k", "RAW": "(v if v is string else v | tojson)",
        "VALUE": "v | tojson", "REPR": "f.arguments | string", "INDENTED": "f.arguments | tojson(indent=2)",
        "INDEX": "(loop.index0 | string)", "ONE": "(loop.index | string)", "ENCODED": "f.arguments | tojson | tojson",
        "KIND": "('string' if v is string else 'json')",
    }  # fmt: skip
    return "".join("{{- " + (words.get(part) or repr(part)) + " }}" for part in parts)


def each(*parts: str, between: str = "") -> str:
    return (
        "{%- for k, v in f.arguments.items() %}"
        + write(*parts)
        + "{%- if not loop.last %}{{- "
        + repr(between)
        + " }}{%- endif %}{%- endfor %}"
    )


KEYWORDS = each("KEY", "=", "VALUE", between=", ")
THINK = ("<think>\n", "\n</think>\n\n")

LAYOUTS = {
    "elements named after the tool and its arguments": Layout(
        calls(write("<", "NAME", ">\n") + each("<", "KEY", ">", "RAW", "</", "KEY", ">\n") + write("</", "NAME", ">"),
              before="<function_calls>\n", between="\n", after="\n</function_calls>"),
    ),
    "keywords with colons": Layout(
        calls(write("NAME", "(") + each("KEY", ": ", "VALUE", between=", ") + write(")"),
              before="<ruby>", between="\n", after="</ruby>"),
    ),
    "words of a shell": Layout(
        calls(write("$ ", "NAME") + each(" --", "KEY", " ", "VALUE") + write("\n"), before="```sh\n", after="```"),
        thought=THINK,
    ),
    "YAML": Layout(
        calls(write("<tool>\nname: ", "NAME", "\narguments:\n") + each("  ", "KEY", ": ", "VALUE", "\n") + write("</tool>"),
              between="\n"),
    ),
    "a fenced list of objects": Layout(
        calls(write('{"name": "', "NAME", '", "arguments": ', "JSON", "}"), before="```json\n[", between=", ", after="]\n```"),
        thought=THINK, opening="<start_of_turn>model\n", end="<end_of_turn>\n",
        other=("<start_of_turn>{}\n", "<end_of_turn>\n"),
    ),
    "one object that holds the calls": Layout(
        calls(write('{"name": "', "NAME", '", "arguments": ', "JSON", "}"),
              before='{"tool_calls": [', between=", ", after="]}"),
    ),
    "tokens around name and arguments": Layout(
        calls(write("<|tool|>", "NAME", "<|args|>", "JSON", "<|tool_end|>")),
        thought=("<|thought|>", "<|thought_end|>"), opening="<|bot|>", end="<|eot|>", other=("<|{}|>", "<|eot|>"),
    ),
    "a request in brackets": Layout(
        calls(write('[TOOL_REQUEST]{"name": "', "NAME", '", "arguments": ', "JSON", "}[END_TOOL_REQUEST]"), between="\n"),
        opening="### Assistant:\n", end="</s>", other=("### {}:\n", "\n"),
    ),
    "id and name as attributes": Layout(
        calls(write('<tool_call id="', "ID", '" name="', "NAME", '">', "JSON", "</tool_call>"), between="\n"),
        thought=THINK, prompt="<|im_start|>assistant\n<think>\n",
    ),
    "a recipient in the header": Layout(
        calls(write("<|recipient|>tools.", "NAME", "<|content|>", "JSON", "<|call|>")),
        opening="<|assistant|>", end="<|eom|>", other=("<|{}|>", "<|eom|>"), text=("<|content|>", ""),
    ),
    "lines that begin with a sign": Layout(
        calls(write("!", "NAME", " ", "JSON"), before="\n", between="\n"),
    ),
    "arguments as a text of JSON": Layout(
        calls(write('{"function": "', "NAME", '", "params": ', "ENCODED", "}"),
              before="<|fc|>", between="<|fc|>", after="<|/fc|>"),
    ),
    "a list behind a token, with no end": Layout(
        calls(write('{"name": "', "NAME", '", "arguments": ', "JSON", "}"), before="<|calls|>[", between=", ", after="]"),
        thought=("<|think|>", "<|/think|>"), opening="<|a|>", end="<|z|>", other=("<|{}|>", "<|z|>"),
    ),
    "an action in a fence": Layout(
        calls(write('Action:\n```json\n{"action": "', "NAME", '", "action_input": ', "JSON", "}\n```"), between="\n"),
        thought=("Thought: ", "\n"),
    ),
    "tags for names and tags for arguments": Layout(
        calls(write("[CALL]", "NAME", "[/CALL][ARG]", "JSON", "[/ARG]")),
        thought=("[THINK]", "[/THINK]"), opening="", end="</s>", other=("[{}]", "[/]"),
    ),
    "kinds of values as attributes": Layout(
        calls(write('<invoke tool="', "NAME", '">')
              + each('<arg key="', "KEY", '" type="', "KIND", '">', "RAW", "</arg>") + write("</invoke>")),
        thought=THINK, prompt="<|im_start|>assistant\n<think>\n",
    ),
    "TOML": Layout(
        calls(write("<call fn=", "NAME", ">\n") + each("KEY", " = ", "VALUE", "\n") + write("</call>"), between="\n"),
    ),
    "an object of JavaScript": Layout(
        calls(write("NAME", "({") + each("KEY", ": ", "VALUE", between=", ") + write("});"),
              before="<js>", between=" ", after="</js>"),
    ),
    "printed Python": Layout(
        calls(write("print(", "NAME", "(") + KEYWORDS + write("))"), before="```tool_code\n", between="\n", after="\n```"),
        opening="<start_of_turn>model\n", end="<end_of_turn>\n", other=("<start_of_turn>{}\n", "<end_of_turn>\n"),
    ),
    "Python with a module": Layout(
        calls(write("functions.", "NAME", "(") + KEYWORDS + write(")"), before="<py>", between="; ", after="</py>"),
        thought=("<scratchpad>", "</scratchpad>"),
    ),
    "tokens per argument": Layout(
        calls(write("<|call|>", "NAME") + each("<|p|>", "KEY", "<|v|>", "VALUE") + write("<|end_call|>")),
        thought=("<|mind|>", "<|/mind|>"), opening="<|gpt|>", end="<|stop|>", other=("<|{}|>", "<|stop|>"),
    ),
    "names with a number": Layout(
        calls(write("<|c|>", "NAME", "#", "INDEX", "<|a|>", "JSON", "<|/c|>"), before="<|cs|>", after="<|/cs|>"),
    ),
    "blocks of typed objects": Layout(
        calls(write('{"type": "tool_use", "id": "', "ID", '", "name": "', "NAME", '", "input": ', "JSON", "}"),
              before="<blocks>[", between=", ", after="]</blocks>"),
        thought=("<thinking>", "</thinking>"),
    ),
    "the name on a line of its own": Layout(
        calls(write("<|call_start|>", "NAME", "\n", "JSON", "\n<|call_end|>")),
        thought=("<|inner_prefix|>", "<|inner_suffix|>"), opening="<|assistant_start|>", end="<|assistant_end|>",
        other=("<|{}_start|>", "<|{}_end|>"),
    ),
    "indented JSON": Layout(
        calls(write('<tool_call>\n{\n  "name": "', "NAME", '",\n  "arguments": ', "INDENTED", "\n}\n</tool_call>"), between="\n"),
        thought=THINK,
    ),
    "thoughts between headings": Layout(
        calls(write("**Tool** `", "NAME", "`\n```json\n", "JSON", "\n```"), between="\n\n"),
        thought=("**Thinking**\n", "\n**Answer**\n"),
    ),
    "an element for the name, an element for the arguments": Layout(
        calls(write("<call><f>", "NAME", "</f><a>", "JSON", "</a></call>"), before="<calls>", after="</calls>"),
        thought=THINK,
    ),
    "wide brackets": Layout(
        calls(write("【调用】", "NAME", "（", "JSON", "）"), between="\n"),
        thought=("【思考】", "【/思考】"),
    ),
    "Python's way of writing a dictionary": Layout(
        calls(write("<tool>{'name': '", "NAME", "', 'arguments': ", "REPR", "}</tool>"), between="\n"),
    ),
    "words at the beginning and end of lines": Layout(
        calls(write("BEGIN_CALL ", "NAME", "\n") + each("KEY", ": ", "RAW", "\n") + write("END_CALL"), between="\n"),
        lines=True, thought=("BEGIN_THOUGHT\n", "\nEND_THOUGHT\n"),
    ),
}  # fmt: skip

MENDED_LAYOUTS = {
    "keys and values on lines of one section": Layout(
        calls(write("NAME", "\n") + each("<k>", "KEY", "</k><v>", "RAW", "</v>\n"), before="<run>\n", between="\n", after="</run>"),
    ),
    "names in brackets before lines": Layout(
        calls(write("[", "NAME", "]\n") + each("KEY", "=", "VALUE", "\n"), before="<calls>\n", between="\n", after="</calls>"),
    ),
    "a header without a mark before the name": Layout(
        calls(write("->", "NAME", "\n", "JSON"), between="<|end|><|start|>assistant"),
        thought=("<|think|>", "<|/think|>"), opening="<|start|>assistant", end="<|end|>",
        other=("<|start|>{}\n", "<|end|>"), text=("\n", ""),
    ),
    "an id in the mark, keys and values": Layout(
        calls(write('<tool_call id="', "ID", '">', "NAME", "\n") + each(
            "<arg_key>", "KEY", "</arg_key>\n<arg_value>", "RAW", "</arg_value>\n") + write("</tool_call>"), between="\n"),
        thought=('<think effort="high">\n', "\n</think>\n\n"), prompt='<|im_start|>assistant\n<think effort="high">\n',
    ),
    "calls that are counted": Layout(
        calls(write("<call_", "INDEX", ">", "NAME", "(") + KEYWORDS + write(")</call_", "INDEX", ">"),
              before="<calls>", after="</calls>"),
    ),
    "blocks behind a header": Layout(
        calls(write("<|b:call|>", "NAME", "\n", "JSON", "<|end|>")), thought=("<|b:think|>", "<|end|>"),
        text=("<|b:text|>", "<|end|>"), opening="<|bot|>", end="<|eot|>", other=("<|{}|>", "<|eot|>"),
    ),
    "a name and an id as attributes": Layout(
        calls(write('<invoke name="', "NAME", '" id="', "ID", '">\n')
              + each('<parameter name="', "KEY", '" type="', "KIND", '">', "RAW", "</parameter>\n") + write("</invoke>"),
              before="<function_calls>\n", between="\n", after="\n</function_calls>"),
    ),
    "channels told by a word behind one mark": Layout(
        calls(write("<|c>tool ", "NAME", "\n", "JSON", "<c|>")), thought=("<|c>thinking\n", "<c|>"),
        text=("<|c>final\n", "<c|>"), opening="<|turn>model\n", end="<turn|>\n", other=("<|turn>{}\n", "<turn|>\n"),
    ),
    "names in brackets between brackets": Layout(
        calls(write("[", "NAME", "]\n") + each("KEY", " = ", "VALUE", "\n"), before="[CALLS]\n", after="[/CALLS]"),
        opening="[bot]", end="</s>", other=("[{}]", "[/]"),
    ),
    "numbered lines": Layout(
        calls(write("ONE", ". ", "NAME", " ", "JSON"), before="<steps>\n", between="\n", after="\n</steps>"),
    ),
    "channels told by a word between marks": Layout(
        calls(write("<|ch|>tool:", "NAME", "<|body|>", "JSON", "<|/ch|>")), thought=("<|ch|>think<|body|>", "<|/ch|>"),
        text=("<|ch|>say<|body|>", "<|/ch|>"), opening="<|model|>", end="<|eot|>", other=("<|{}|>", "<|eot|>"),
    ),
}  # fmt: skip
"""What blind sets showed to be lost, one of each kind. Three more sets, of 18, 14 and 10 layouts, passed 116 of 174, 101 of
137 and 60 of 99 checks before these were mended, and at first sight afterwards 149 of 174, 123 of 138 and 96 of 96."""

LATER_LAYOUTS = {
    "a word with a colon, Python in single quotes": Layout(
        calls(write("Call: ", "NAME", "(") + each("KEY", "=", "VALUE", between=", ") + write(")<bot_end>"), between="\n"),
        opening="<|bot|>", end="</s>", other=("<|{}|>", "\n"),
    ),
    "a token before each object, no end": Layout(
        calls(write('<function_call> {"name": "', "NAME", '", "arguments": ', "JSON", "}"), between="\n"),
        opening="<|role|>assistant<|role_end|>", end="<|text_end|>\n", other=("<|role|>{}<|role_end|>", "<|text_end|>\n"),
    ),
    "signs of flowers": Layout(
        calls(write("✿FUNCTION✿: ", "NAME", "\n✿ARGS✿: ", "JSON"), before="\n", between="\n", after="\n✿RESULT✿"),
    ),
    "two tokens before an object with parameters": Layout(
        calls(write('<|action_start|><|plugin|>\n{"name": "', "NAME", '", "parameters": ', "JSON", "}<|action_end|>\n")),
    ),
    "doubled brackets around a word": Layout(
        calls(write("<<function>>", "NAME", "(") + KEYWORDS + write(")")),
        opening="### Response: ", end="<|EOT|>", other=("### {}: ", "\n"),
    ),
    "a list of objects on lines": Layout(
        calls(write('    {"name": "', "NAME", '", "arguments": ', "JSON", "}"),
              before="<tool_calls>[\n", between=",\n", after="\n]</tool_calls>"),
        opening="<|bom|><|assistant|> ", end="<|eom|>", other=("<|bom|><|{}|> ", "<|eom|>"),
    ),
    "an element of another space in tokens": Layout(
        calls(write("<|tool_call_begin|>function<|tool_sep|>", '<x:invoke name="', "NAME", '">')
              + each('<x:parameter name="', "KEY", '">', "RAW", "</x:parameter>") + write("</x:invoke><|tool_call_end|>"),
              before="<|tool_calls_begin|>", after="<|tool_calls_end|>"),
        thought=THINK, opening="<|BOT|>assistant\n", end="<|EOT|>", other=("<|BOT|>{}\n", "<|EOT|>"),
    ),
    "long tags for keys and values": Layout(
        calls(write("<cat_tool_call>", "NAME", "\n") + each(
            "<cat_arg_key>", "KEY", "</cat_arg_key>\n<cat_arg_value>", "RAW", "</cat_arg_value>\n")
            + write("</cat_tool_call>"), between="\n"),
        thought=("<cat_think>\n", "\n</cat_think>\n"), opening=" ASSISTANT:", end="</cat_s>", other=(" {}:", ""),
    ),
    "a recipient and a content on lines": Layout(
        calls(write("<|from|>assistant\n<|recipient|>", "NAME", "\n<|content|>", "JSON"), between="\n"),
        opening="", prompt="<|from|>assistant\n<|recipient|>", end="<|stop|>\n",
        other=("<|from|>{}\n<|recipient|>all\n<|content|>", "\n"), text=("<|from|>assistant\n<|recipient|>all\n<|content|>", ""),
    ),
    "fenced Python between tokens": Layout(
        calls(write("NAME", "(") + KEYWORDS + write(")"),
              before="<|tool_call_start|>\n```python\n", between="\n", after="\n```\n<|tool_call_end|>"),
        thought=("<|thought_start|>\n", "\n<|thought_end|>\n"),
    ),
    "lines of Python in an element": Layout(
        calls(write("NAME", "(") + KEYWORDS + write(")"), before="<function_calls>", between="\n", after="</function_calls>"),
        thought=("<think>", "</think>"),
    ),
    "elements for server, name and arguments": Layout(
        calls(write("<use_tool>\n<server_name>default</server_name>\n<tool_name>", "NAME",
                    "</tool_name>\n<arguments>\n", "JSON", "\n</arguments>\n</use_tool>"), between="\n"),
        thought=THINK, prompt="<|im_start|>assistant\n<think>\n",
    ),
    "a question with steps": Layout(
        calls(write("Action: ", "NAME", "\nAction Input: ", "JSON", "\n"), before="\n"),
        thought=("Thought: ", "\nFinal: "),
    ),
    "an object per line between fences": Layout(
        calls(write('{"tool": "', "NAME", '", "args": ', "JSON", "}\n"), before="```tool\n", after="```"),
        opening="<|start_header|>assistant<|end_header|>\n\n", end="<|eot|>",
        other=("<|start_header|>{}<|end_header|>\n\n", "<|eot|>"),
    ),
    "short marks of one letter": Layout(
        calls(write("<c>", "NAME", "<a>", "JSON", "</a></c>")), thought=("<t>", "</t>"), opening="<b>", end="</b>",
        other=("<{}>", "</{}>"),
    ),
    "slashes": Layout(
        calls(write("/", "NAME", " ") + each("KEY", "=", "VALUE", between=" "), before="\n", between="\n"),
    ),
    "a call as an attribute of a link": Layout(
        calls(write("[", "NAME", "](tool:", "JSON", ")"), between=" "),
    ),
    "a table of cells": Layout(
        calls(write("| ", "NAME") + each(" | ", "KEY", " = ", "VALUE") + write(" |"), before="<calls>\n", between="\n", after="\n</calls>"),
    ),
    "an array of name and arguments": Layout(
        calls(write('["', "NAME", '", ', "JSON", "]"), before="<call>", between="</call><call>", after="</call>"),
        thought=THINK,
    ),
    "names as keys of objects": Layout(
        calls(write('{"', "NAME", '": ', "JSON", "}"), before="<fns>", between="\n", after="</fns>"),
        thought=("<reason>", "</reason>"),
    ),
}  # fmt: skip
"""Twenty more, written down after the first were mended, mostly as models do that no collection has."""

LAST_LAYOUTS = {
    "a method behind a token": Layout(
        calls(write("<|code_tag|>", "NAME", ".call(") + KEYWORDS + write(")")),
        opening="<|h|>assistant<|/h|>\n\n", end="<|eom|>", other=("<|h|>{}<|/h|>\n\n", "<|eom|>"),
    ),
    "an input inside a use": Layout(
        calls(write('<tool_use name="', "NAME", '"><input>', "JSON", "</input></tool_use>"), between="\n"),
        thought=("<plan>", "</plan>"),
    ),
    "signs before words": Layout(
        calls(write("@tool ", "NAME", " ", "JSON", " @end"), before="\n", between="\n"),
    ),
    "an object with tool and input": Layout(
        calls(write('{"tool": "', "NAME", '", "tool_input": ', "JSON", "}"), before="<|json|>", between="<|json|>"),
        thought=THINK, prompt="<|im_start|>assistant\n<think>\n",
    ),
    "lines with words in capitals": Layout(
        calls(write("TOOL: ", "NAME", "\nARGS: ", "JSON", "\nEND"), before="\n", between="\n"),
        thought=("THOUGHT: ", "\nSAY: "),
    ),
    "whole objects of an API": Layout(
        calls(write('{"id": "', "ID", '", "type": "function", "function": {"name": "', "NAME", '", "arguments": ', "JSON", "}}"),
              before="<|calls|>\n[", between=", ", after="]"),
        opening="<|ai|>\n", end="<|over|>\n", other=("<|{}|>\n", "<|over|>\n"),
    ),
    "arguments as elements": Layout(
        calls(write("<fn>", "NAME", "</fn><args>") + each("<", "KEY", ">", "RAW", "</", "KEY", ">") + write("</args>"),
              before="<run>", after="</run>"),
        thought=("<mind>\n", "\n</mind>\n"),
    ),
    "a sentence": Layout(
        calls(write("call ", "NAME", " with ", "JSON", ";"), before="<do>", between=" ", after="</do>"),
    ),
    "a spread object": Layout(
        calls(write("NAME", "(**", "JSON", ")"), before="<code>\n", between="\n", after="\n</code>"),
        thought=("# ", "\n\n"),
    ),
    "a list of keys": Layout(
        calls(write("<tool name=", "NAME", ">\n") + each("- ", "KEY", ": ", "VALUE", "\n") + write("</tool>"), between="\n"),
    ),
    "a directive": Layout(
        calls(write("::", "NAME", "{") + each("KEY", "=", "VALUE", between=" ") + write("}"), before="\n", between="\n"),
    ),
    "Lisp": Layout(
        calls(write("(", "NAME") + each(" :", "KEY", " ", "VALUE") + write(")"), before="<lisp>", between="\n", after="</lisp>"),
        thought=("<;>", "</;>"),
    ),
}  # fmt: skip
"""Twelve more, written down at the end: what was mended for the others counts here, nothing was mended for them."""

PUBLISHED_LAYOUTS = {
    "a name behind the head of a turn": Layout(
        calls(write("NAME", "\n", "JSON"), between="<|bot|>"), apart=True,
        opening="<|bot|>", end="<|eot|>", other=("<|{}|>", "<|eot|>"), text=("\n", ""),
    ),
    "a name, and Python in a fence behind it": Layout(
        calls(write("NAME", "\n ```python\ntool_call(") + KEYWORDS + write(")\n```"), between="<|bot|>"), apart=True,
        opening="<|bot|>", end="<|eot|>", other=("<|{}|>", "<|eot|>"), text=("\n ", ""),
    ),
    "a type in an element of its own": Layout(
        calls(write("<call>", "NAME") + each("<k>", "KEY", "</k><t>", "KIND", "</t><v>", "RAW", "</v>") + write("</call>")),
    ),
    "an object at once behind the name": Layout(
        calls(write("<|tool|>call:", "NAME", "JSON", "<|/tool|>")),
        thought=("<|channel|>thought\n", "<|/channel|>"),
    ),
    "lines of Python": Layout(
        calls(write("NAME", "(") + KEYWORDS + write(")"), between="\n"), apart=True,
    ),
    "words that share their first letters": Layout(
        calls(write('{"tool_name": "', "NAME", '", "parameters": ', "JSON", "}"), before="Action:\n```json\n[", between=", ", after="]\n```"),
        thought=("Plan: ", "\n"), text=("Answer: ", ""), apart=True,
    ),
    "roles inside a turn": Layout(
        calls(write('<|im_start|>call\n{"name": "', "NAME", '", "arguments": ', "JSON", "}")),
        thought=("<|im_start|>think\n", "\n"), text=("<|im_start|>answer\n", ""),
    ),
    "calls counted by a number": Layout(
        calls(write('{"id": ', "INDEX", ', "name": "', "NAME", '", "arguments": ', "JSON", "}\n"), before="<tools>\n", after="</tools>"),
    ),
    "an object whose arguments are a text": Layout(
        calls(write('<|fn|>{"type": "function", "function": {"name": "', "NAME", '", "arguments": ', "ENCODED", "}}<|/fn|>")),
    ),
    "a recipient behind the role, blocks with two ends": Layout(
        calls(write(" to=functions.", "NAME", "<|lane|>outer json<|body|>", "JSON", "<|invoke|>"), between="<|begin|>bot"), apart=True,
        thought=("<|lane|>inner<|body|>", "<|done|><|begin|>bot"), text=("<|lane|>outer<|body|>", "<|done|>"),
        opening="<|begin|>bot", end="", other=("<|begin|>{}<|body|>", "<|done|>"),
    ),
}  # fmt: skip
"""Formats that vendors have published: what they taught, one of each kind. Five sets of 44, 26, 24, 22 and 22 templates,
each written down before its outputs were read and after the set before had been mended, passed 911 of 961, 574 of 613,
516 of 554, 464 of 492 and 523 of 540 checks at first sight."""
