"""Chat: conversations become prompts, and model output becomes messages.

    template    ChatTemplate(source, bos_token, eos_token, special_tokens)
                  .render(ChatPrompt) -> Rendered(text, segments, continues)
                  .format -> ChatFormat, learned by `probe` or from the table in `families`
    renderer    Renderer: one template, compiled, in its sandbox; messages as it takes them become text
    traits      what one template accepts and shows; normalise: conversations made so
    parser      Parser(format, prompt=rendered.text, continues=rendered.continues, tools=...)
                  .feed(text) / .finish() -> events; in_reasoning, in_call, calls, complete_calls
    grammar     constrain(format, prompt=..., tools=..., must_call=..., content=...) -> Constraint | None
    notations   how one call is written, read, allowed and learned: a file each
    round_trip  round_trip(template) -> which kinds of turns come back as they were

`renderer`, `sandbox` and `guard` are the template's; `scanner`, `markers`, `emitter`, `calls`, `thoughts`, `messages`,
`channel_messages` and `values` the parser's; `rules`, `argument_rules`, `lark` and `structural_tag` the grammar's.
Nothing here knows tokens, engines or protocols.
"""
