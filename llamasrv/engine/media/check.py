"""Checks the images and audio of a prompt before the engine thread sees it."""

from __future__ import annotations

import numpy as np

from llamasrv.domain.sequence_spec import SequenceSpec
from llamasrv.engine.base.arrays import Int32s
from llamasrv.engine.base.interface import ModelFacts
from llamasrv.errors import InvalidRequest, Unsupported


def check_media(spec: SequenceSpec, ids: Int32s, model: ModelFacts) -> None:
    """`ids`: the prompt's tokens. Raises InvalidRequest or Unsupported."""
    if model.projector is None:
        raise Unsupported(
            "This model has no projector; it cannot take images or audio. Start the server with --mmproj.",
            param="prompt",
        )
    if spec.prompt_logprobs:
        raise InvalidRequest("Log-probabilities of a prompt with images or audio are not available.", param="prompt")
    end = rows = 0
    for span in spec.media:
        assert end <= span.start < span.end <= len(ids), "spans overlap, or lie outside of the prompt"
        assert span.media.data is not None, "an input that was only measured"
        assert int(ids[span.start : span.end].max()) < 0, "tokens of text in a span"
        end = span.end
        rows += span.chunk.num_tokens
        if span.chunk.whole and span.chunk.num_tokens > model.ubatch_size:
            raise InvalidRequest(
                f"The image takes {span.chunk.num_tokens} tokens, which must be computed in one step; this server "
                f"computes at most {model.ubatch_size}. Send a smaller image, or raise --ubatch-size.",
                param="prompt",
            )
    if int(np.count_nonzero(ids < 0)) != rows:
        raise InvalidRequest(f"A token id is outside the vocabulary (0 to {model.vocab.size - 1}).", param="prompt")
