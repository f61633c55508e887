"""Chat: conversations to prompts, and what a model writes back to messages.

    template    ChatTemplate(source, bos_token, eos_token, special_tokens)
                  .render(ChatPrompt) -> Rendered(text, segments, continues)
                  .format -> ChatFormat, learned by `probe` or from the table in `formats`
    normalise   what one template accepts (Traits), and conversations made so
    parser      Parser(format, prompt=rendered.text, continues=rendered.continues, tools=...)
                  .feed(text) / .finish() -> events; in_reasoning, in_call, calls, complete_calls
    grammar     constrain(format, prompt=..., tools=..., must_call=..., content=...) -> Constraint | None

`marks`, `scanner`, `calls` and `values` are the parser's. Nothing here knows tokens, engines or protocols.
"""
