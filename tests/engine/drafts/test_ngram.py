"""N-gram lookup: the longest match, the newest, and continued copies."""

import random
from array import array

from llamasrv.engine.drafts.acceptance import Acceptance
from llamasrv.engine.drafts.ngram import LENGTHS, Lookup, NgramIndex


def tokens(text):
    return array("i", list(text.encode()))


def proposed(text, most=8):
    timeline = tokens(text)
    draft = Lookup("ngram", timeline, len(timeline)).propose(timeline, most, Acceptance())
    return None if draft is None else bytes(draft.tokens).decode()


def test_it_proposes_what_followed_the_same_tokens():
    assert proposed("the quick brown fox. the quick", most=6) == " brown"


def test_it_proposes_nothing_after_new_text():
    assert proposed("abcdefgh") is None and proposed("ab") is None and proposed("") is None


def test_the_longest_match_wins():
    assert proposed("long, abcdef 1. abcdef 2. zbcdef 3. long, abcdef", most=2) == " 1"


def test_the_newest_of_equals_wins():
    assert proposed("say one, say two, say", most=4) == " two"


def test_a_draft_ends_with_the_text():
    assert proposed("abcabc", most=8) == "abc"


def test_bulk_and_incremental_indexing_agree():
    rng = random.Random(1)
    text = array("i", [rng.randrange(4) for _ in range(300)])
    whole, grown = NgramIndex(text), NgramIndex(array("i"))
    for i, token in enumerate(text):
        grown.text.append(token)
        if i > 40 and i % 3 == 0:
            grown.places(grown.text[-20:])
    assert whole.places(text[-20:]) == grown.places(text[-20:])
    for _ in range(100):
        tail = array("i", [rng.randrange(4) for _ in range(5)])
        assert whole.places(tail) == grown.places(tail)
        for place in whole.places(tail):
            assert text[place - 3 : place] == tail[-3:] and place < len(text)


def test_a_shortened_text_is_indexed_again():
    text = tokens("one two three one two four five six seven eight")
    index = NgramIndex(text)
    index.places(text[-20:])
    del text[8:]
    text.extend(tokens("one two"))
    assert [chr(text[at]) for at in index.places(text[-20:])] == [" "]


def test_pseudo_tokens_are_never_proposed():
    """Images are negative numbers in a timeline."""
    timeline = array("i", [1, 2, 3, 4, -7, 5, 9, 1, 2, 3])
    draft = Lookup("ngram", timeline, 0).propose(timeline, 8, Acceptance())
    assert draft.tokens == [4]


def test_a_prediction_is_followed_from_its_first_token():
    timeline = tokens("prompt: d")
    lookup = Lookup("prediction", tokens("def f(x):"), len(timeline) - 1)
    assert bytes(lookup.propose(timeline, 5, Acceptance()).tokens) == b"ef f("


def test_an_interrupted_copy_continues():
    """One token of the prediction is replaced; the next one is enough to go on."""
    timeline = tokens("prompt: ")
    lookup = Lookup("prediction", tokens("value = one + two + one"), len(timeline))
    timeline.extend(tokens("val"))
    lookup.propose(timeline, 8, Acceptance())
    timeline.extend(tokens("ue = oXe"))
    assert bytes(lookup.propose(timeline, 6, Acceptance()).tokens) == b" + two"


def test_a_copy_continues_right_after_a_replaced_token():
    timeline = tokens("prompt: ")
    lookup = Lookup("prediction", tokens("value = one + two + one"), len(timeline))
    timeline.extend(tokens("value = "))
    lookup.propose(timeline, 8, Acceptance())
    timeline.extend(tokens("X"))
    assert bytes(lookup.propose(timeline, 4, Acceptance()).tokens) == b"ne +"
    timeline.extend(tokens("YZ"))
    assert lookup.propose(timeline, 6, Acceptance()) is None  # more than one: it is another text


def test_chances_fall_along_a_draft_and_grow_with_the_match():
    long, short = (tokens(f"{text} and then {text}") for text in ("a long text that is copied", "abc"))
    acceptance = Acceptance()
    for timeline in (long, short):
        timeline.append(ord(" "))
    a, b = (Lookup("ngram", t, len(t)).propose(t, 4, acceptance) for t in (long, short))
    assert a.chances[0] > b.chances[0] and a.kinds[0] < b.kinds[0] <= LENGTHS.index(4)
    assert a.chances == sorted(a.chances, reverse=True)


def test_chances_follow_observed_acceptance():
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.learn("ngram", 0, False)
        acceptance.learn("ngram", 4, True)
    assert acceptance.chance("ngram", 0, 0.95) < 0.15 and acceptance.chance("ngram", 4, 0.6) > 0.95
    assert acceptance.chance("prediction", 0, 0.95) > 0.94


def test_a_new_sequence_starts_from_the_acceptance_of_all():
    """Each answer in prose tried a few drafts that had been wrong in the one before, too: 4 % of two streams' speed."""
    of_all = Acceptance()
    other = Acceptance(of_all)
    for _ in range(20):
        other.learn("ngram", 3, False)
    mine = Acceptance(of_all)
    assert mine.chance("ngram", 3, 0.7) < 0.15
    assert min(mine.chance("ngram", 4, 0.7), mine.chance("prediction", 3, 0.7)) > 0.69
    for _ in range(6):
        mine.learn("ngram", 3, True)
    assert mine.chance("ngram", 3, 0.7) > 0.6
