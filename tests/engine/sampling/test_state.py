"""One sequence's next token, asked row by row as a step with several rows of a sequence does."""

import numpy as np
import pytest
from constraints import WILD, constraint, run
from engine_driver import GREEDY, spec, text_of
from recording_backend import RecordingBackend

from llamasrv.domain.events import FinishReason
from llamasrv.domain.params import LogitBias, SamplingParams
from llamasrv.engine.sampling.candidates import CandidateFinder
from llamasrv.engine.sampling.output_constraint import LONGEST_JUMP
from llamasrv.engine.sampling.state import SamplingState

BACKEND = RecordingBackend()
FIND = CandidateFinder(BACKEND.vocab.size)
END = BACKEND.vocab.eos


def row_for(token):
    row = np.random.default_rng(token).standard_normal(BACKEND.vocab.size).astype(np.float32)
    row[token] += 50
    return row


class Verified:
    """A sequence whose model wants to say `text`; rows are asked one after another."""

    def __init__(self, text, backend=BACKEND, *, constraint=None, **settings):
        self.wanted = [*text.encode(), END]
        asked = spec(list(b"asked"), **{"params": GREEDY, **settings})
        self.tokens = asked.tokens[:]
        self.state = SamplingState(asked, self.tokens, constraint, backend)
        self.heard = []

    def ask(self, drafts):
        """How many of these were right, by the rows that they make: one for each, and one more."""
        for accepted, draft in enumerate([*drafts.encode(), None]):
            choice = self.state.choose(row_for(self.wanted[self.num_generated]), FIND)
            ending = self.state.accept(choice.token, choice.logprobs, self.heard.append)
            if ending is not None or choice.token != draft:
                return accepted, ending
        raise AssertionError

    @property
    def num_generated(self):
        return len(self.tokens) - len(b"asked")

    @property
    def text(self):
        return text_of(self.heard)


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=3, presence_penalty=0.5)])
@pytest.mark.parametrize("drafts", ["", "he", "hello there", "hexxx"])
def test_drafts_do_not_change_the_text(params, drafts):
    verified = Verified("hello there", params=params)
    ending, rounds = None, 0
    while ending is None:
        _, ending = verified.ask(drafts if not rounds else "")
        rounds += 1
    assert verified.text == "hello there" and ending.reason is FinishReason.STOP


def test_a_wrong_draft_is_replaced_by_the_chosen_token():
    verified = Verified("hello")
    assert verified.ask("help") == (3, None)
    assert verified.tokens[-4:].tolist() == list(b"hell") and verified.text == "hell"


def test_a_stop_string_among_drafts_ends_it_there():
    verified = Verified("one two three", stop=("two",))
    accepted, ending = verified.ask("one two three")
    assert (accepted, ending.reason, ending.stop) == (6, FinishReason.STOP_STRING, "two")
    assert verified.text == "one "


def test_drafts_past_the_limit_are_ignored():
    verified = Verified("one two three", max_tokens=5)
    accepted, ending = verified.ask("one two three")
    assert (accepted, ending.reason) == (4, FinishReason.LENGTH) and verified.num_generated == 5


def test_the_context_is_a_limit():
    verified = Verified("one two three", RecordingBackend(context=8))
    assert verified.ask("one")[1].reason is FinishReason.CONTEXT and verified.text == "one"


def test_an_end_among_drafts_ends_it_there():
    verified = Verified("on")
    assert verified.ask("on two")[1].reason is FinishReason.STOP and verified.text == "on"


def test_held_back_text_is_delivered_if_no_stop_string_follows():
    verified = Verified("one tw", stop=("two",))
    _, ending = verified.ask("one tw")
    assert ending.reason is FinishReason.STOP and verified.text == "one "
    verified.state.flush(verified.heard.append)
    assert verified.text == "one tw"


def test_log_probabilities_are_those_of_each_row_before_bias():
    verified = Verified(
        "ab", params=SamplingParams(temperature=0, logit_bias=LogitBias(((ord("a"), -200.0),))), logprobs=1
    )
    choice = verified.state.choose(row_for(ord("a")), FIND)
    assert choice.token != ord("a") and choice.logprobs.logprob < -10 and choice.logprobs.top[0].token == ord("a")


def test_forced_tokens_need_no_rows(drive):
    driver = drive()
    forced = Verified("xyz", constraint=constraint(driver, 'start: "abc" /[xyz]{2}/'), params=WILD)
    assert forced.state.jump_forward(forced.heard.append) is None
    assert forced.text == "abc" and forced.state.is_late  # what follows needs a mask


def test_forced_tokens_computed_with_the_prompt_are_delivered_later(drive):
    driver = drive()
    forced = Verified("xyz", constraint=constraint(driver, 'start: "abc"'))
    forced.state.jump_with_prompt()
    assert forced.state.num_undelivered == 3 and forced.tokens[-3:].tolist() == list(b"abc") and not forced.heard
    assert forced.state.deliver(forced.heard.append).reason is FinishReason.STOP
    assert forced.text == "abc" and forced.state.num_undelivered == 0


LONG_TEXT = "the quick brown fox, " * 200


def test_long_forced_text_is_taken_piece_by_piece(drive):
    """The tokens of a constant of 60,000 characters took the engine's thread 40 to 90 ms, and accepting them as long."""
    driver = drive()
    forced = Verified("x", constraint=constraint(driver, f'start: "{LONG_TEXT}" /[xyz]/'))
    forced.state.jump_with_prompt()
    assert not forced.state.num_undelivered and forced.state.is_late  # they are found beside the mask, elsewhere
    forced.state.constraint.matcher.compute_mask()
    choice = forced.state.choose(row_for(ord("q")), FIND)
    assert forced.state.accept(choice.token, None, forced.heard.append) is None
    assert forced.state.jump_forward(forced.heard.append) is None
    assert forced.text == LONG_TEXT[: LONGEST_JUMP + 1] and not forced.state.is_late


@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize(
    "grammar, text",
    [
        (f'start: "{LONG_TEXT}"', LONG_TEXT),
        (f'start: /[u]/ "{LONG_TEXT}" /[x]{{2,2}}/', f"u{LONG_TEXT}xx"),
    ],
)
def test_long_forced_text_is_written_whole(drive, grammar, text, logprobs):
    driver = drive(context=8192, num_cells=16384)
    said, _ = run(driver, constraint=constraint(driver, grammar), params=GREEDY, logprobs=logprobs)
    assert said == text


def test_each_row_uses_the_mask_of_its_position(drive):
    driver = drive()
    masked = Verified("abz", constraint=constraint(driver, "start: /[ab]/ /[xy]/ /[z]{1,2}/"))
    text = ""
    for _ in range(2):
        masked.state.constraint.matcher.compute_mask()
        choice = masked.state.choose(row_for(ord("a")), FIND)
        assert masked.state.accept(choice.token, None, masked.heard.append) is None
        text = masked.text
    assert text[0] == "a" and text[1] in "xy"


def test_a_row_without_candidates_gives_no_token():
    verified = Verified("a")
    assert verified.state.choose(np.full(BACKEND.vocab.size, np.nan, np.float32), FIND) is None


def test_a_row_of_nan_gives_no_end_where_a_grammar_allows_few_tokens(drive):
    """With min_tokens, which bans the end, it was taken for a row in which only the end is left: the answer broke off
    as if it were whole."""
    params = SamplingParams(temperature=0, min_tokens=5)
    masked = Verified("a", params=params, constraint=constraint(drive(), "start: /[ab]*/"))
    masked.state.constraint.matcher.compute_mask()
    assert masked.state.choose(np.full(BACKEND.vocab.size, np.nan, np.float32), FIND) is None


def test_a_forced_token_gets_no_log_probability_from_a_row_of_nan(drive):
    driver = drive()
    forced = Verified("a", constraint=constraint(driver, 'start: "abc"'), logprobs=1)
    assert forced.state.choose(np.full(BACKEND.vocab.size, np.nan, np.float32), FIND) is None
    assert forced.state.choose(row_for(ord("z")), FIND).token == ord("a")
