"""Programs that `llamasrv launch` starts, and how each is configured: a table of data.

Texts may contain {url} (of the server, without /v1), {key}, {model}, {context} and {output} (tokens of a prompt and
its answer together, and of an answer at most), {share} (7/10 of the context, as a share of 2**20 tokens), {folder} (of
`files`). A text that is one of these alone becomes its
value, so that JSON has numbers; a value that is not a text is written as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class LaunchedProgram:
    """How to point one program at its model."""

    command: str
    install: str  # the command that installs it
    prompt_tokens: int  # length of its first prompt; it needs a context of twice that
    environment: Mapping[str, Any] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()  # variables that would take it elsewhere
    files: Mapping[str, Any] = field(default_factory=dict)  # JSON files in a temporary folder


# Codex has instructions of its own for models that it knows, and 3,500 tokens of them for all others.
_CODEX_INSTRUCTIONS = """\
You are a coding agent in the Codex CLI, on the user's computer. Work until the user's request is done, then say \
briefly what you changed and how you checked it.

- Look before you change: read the files that matter, and search with `rg` or `grep`. Follow the instructions of \
AGENTS.md files in the folder of what you change and above it.
- Make the smallest change that solves the problem at its root, in the style of the code around it. Leave alone what \
the request is not about, and what the user has changed. Never undo changes that you did not make.
- Edit files by running `apply_patch` in the shell:

apply_patch <<'EOF'
*** Begin Patch
*** Update File: path/to/file.py
@@ def function_that_changes():
-    a line that goes
+    a line that comes
*** End Patch
EOF

  Lines that stay begin with a space; show three around each change. `*** Add File: PATH` (each line begins with +) \
and `*** Delete File: PATH` stand in the place of `*** Update File: PATH`. Paths are relative.
- Run the tests or the program when there is something to run, and mend what you broke. Do not commit, and do not \
install anything, unless you are asked to.
- If a command is refused or needs rights that you do not have, say so instead of working around it. If the request is \
unclear in a way that matters, ask; otherwise choose and say what you chose.
- Write plain text, short: paths as `path:line`, no long listings of what the user can see in the files.
"""
_CODEX_MODEL: Mapping[str, Any] = {
    "slug": "{model}",
    "display_name": "{model}",
    "context_window": "{context}",
    "base_instructions": _CODEX_INSTRUCTIONS,
    "shell_type": "unified_exec",
    "supports_parallel_tool_calls": True,
    "support_verbosity": False,
    "supported_reasoning_levels": (),
    "truncation_policy": {"mode": "bytes", "limit": 10_000},
    "experimental_supported_tools": (),
    "visibility": "list",
    "supported_in_api": True,
    "priority": 0,
}
"""What Codex asks of a catalogue of models; without one it warns at each start that it does not know the model."""


PROGRAMS: Mapping[str, LaunchedProgram] = {
    "claude": LaunchedProgram(
        "claude",
        "npm install -g @anthropic-ai/claude-code",
        15_000,
        {
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_AUTH_TOKEN": "{key}",
            "ANTHROPIC_API_KEY": "",
            "ANTHROPIC_MODEL": "{model}",
            "ANTHROPIC_DEFAULT_OPUS_MODEL": "{model}",
            "ANTHROPIC_DEFAULT_SONNET_MODEL": "{model}",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "{model}",
            "CLAUDE_CODE_SUBAGENT_MODEL": "inherit",
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "{context}",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "{output}",
            "CLAUDE_AUTOCOMPACT_PCT_OVERRIDE": "90",
            # each of these changes the beginning of prompts, so that nothing of them could be reused
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
            "CLAUDE_CODE_DISABLE_GIT_INSTRUCTIONS": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "ENABLE_TOOL_SEARCH": "true",  # most tools are shown once they are found: a third less to compute first
            "CLAUDE_STREAM_IDLE_TIMEOUT_MS": "1800000",
            "API_TIMEOUT_MS": "1800000",
        },
        unset=("CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"),
    ),
    "codex": LaunchedProgram(
        "codex",
        "npm install -g @openai/codex",
        7_000,
        {"LLAMASRV_KEY": "{key}"},
        (
            "-c",
            'model="{model}"',
            "-c",
            'model_provider="llamasrv"',
            "-c",
            "model_context_window={context}",
            "-c",
            'web_search="disabled"',
            "-c",
            'model_catalog_json="{folder}/models.json"',
            "-c",
            'model_providers.llamasrv={name="llamasrv", base_url="{url}/v1", wire_api="responses", '
            'env_key="LLAMASRV_KEY", stream_idle_timeout_ms=1800000}',
        ),
        files={"models.json": {"models": [_CODEX_MODEL]}},
    ),
    "opencode": LaunchedProgram(
        "opencode",
        "npm install -g opencode-ai",
        10_000,
        {
            "OPENCODE_CONFIG_CONTENT": {
                "model": "llamasrv/{model}",
                "small_model": "llamasrv/{model}",
                "compaction": {"prune": False},
                "provider": {
                    "llamasrv": {
                        "npm": "@ai-sdk/openai-compatible",
                        "name": "llamasrv",
                        "options": {"baseURL": "{url}/v1", "apiKey": "{key}"},
                        "models": {
                            "{model}": {"name": "{model}", "limit": {"context": "{context}", "output": "{output}"}}
                        },
                    }
                },
            }
        },
    ),
    "qwen": LaunchedProgram(
        "qwen",
        "npm install -g @qwen-code/qwen-code",
        15_000,
        {
            "OPENAI_BASE_URL": "{url}/v1",
            "OPENAI_API_KEY": "{key}",
            "OPENAI_MODEL": "{model}",
            "QWEN_CODE_SYSTEM_SETTINGS_PATH": "{folder}/settings.json",
        },
        ("--auth-type", "openai", "--model", "{model}"),
        files={
            "settings.json": {
                "modelProviders": {
                    "openai": [
                        {
                            "id": "{model}",
                            "name": "{model}",
                            "baseUrl": "{url}/v1",
                            "envKey": "OPENAI_API_KEY",
                            "generationConfig": {"contextWindowSize": "{context}"},
                        }
                    ]
                }
            }
        },
    ),
    "gemini": LaunchedProgram(
        "gemini",
        "npm install -g @google/gemini-cli",
        10_000,
        {
            "GOOGLE_GEMINI_BASE_URL": "{url}",
            "GEMINI_API_KEY": "{key}",
            "GEMINI_MODEL": "{model}",
            "GEMINI_CLI_SYSTEM_SETTINGS_PATH": "{folder}/settings.json",
        },
        unset=("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA", "GOOGLE_API_KEY"),
        files={
            "settings.json": {
                "security": {"auth": {"selectedType": "gemini-api-key"}},
                # it assumes a window of 1,048,576 tokens for any model, and would never shorten a conversation
                "model": {"compressionThreshold": "{share}"},
            }
        },
    ),
    "copilot": LaunchedProgram(
        "copilot",
        "npm install -g @github/copilot",
        20_000,
        {
            "COPILOT_PROVIDER_BASE_URL": "{url}/v1",
            "COPILOT_PROVIDER_API_KEY": "{key}",
            "COPILOT_PROVIDER_WIRE_API": "responses",
            "COPILOT_MODEL": "{model}",
        },
    ),
    "aider": LaunchedProgram(
        "aider",
        "pip install aider-chat",
        2_500,
        {"OPENAI_API_BASE": "{url}/v1", "OPENAI_API_KEY": "{key}"},
        ("--model", "openai/{model}", "--model-metadata-file", "{folder}/models.json", "--no-show-model-warnings"),
        files={
            "models.json": {
                "openai/{model}": {
                    "max_input_tokens": "{context}",
                    "max_output_tokens": "{output}",
                    "max_tokens": "{output}",
                    "litellm_provider": "openai",
                    "mode": "chat",
                }
            }
        },
    ),
}


def filled(value: Any, facts: Mapping[str, Any]) -> Any:
    """`value` with its texts filled in from `facts`."""
    if isinstance(value, Mapping):
        return {filled(name, facts): filled(one, facts) for name, one in value.items()}
    if isinstance(value, list):
        return [filled(one, facts) for one in value]
    if not isinstance(value, str):
        return value
    for name, fact in facts.items():
        if value == f"{{{name}}}":
            return fact
        value = value.replace(f"{{{name}}}", str(fact))
    return value


def as_text(value: Any) -> str:
    """A value of a variable: JSON unless it is a text."""
    return value if isinstance(value, str) else json.dumps(value)
