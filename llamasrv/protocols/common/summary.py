"""How a model is asked to summarise a conversation that has become long."""

from __future__ import annotations

SUMMARISE = (
    "Summarise our conversation so far for somebody who has to go on with it and sees nothing else: the goals, the"
    " decisions, the facts and file names that matter, what is done and what is left to do. Write only the summary."
)
