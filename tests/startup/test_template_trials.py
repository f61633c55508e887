"""Which templates are tried before a model is loaded, and what follows."""

from __future__ import annotations

import pytest

from llamasrv.chat.renderer import TemplateError
from llamasrv.chat.trial import TemplateDangerous
from llamasrv.engine.base.interface import LoadFailed
from llamasrv.models.details import Details
from llamasrv.models.model import Model, ModelSettings
from llamasrv.models.trial import Trials
from llamasrv.startup import template_trials


def a_model(template=None, own=None, for_tools=None):
    metadata = {} if for_tools is None else {"tokenizer.chat_template.tool_use": for_tools}
    return Model("m", ModelSettings(details=Details(template=own, metadata=metadata), chat_template=template))


@pytest.mark.parametrize(
    ("model", "sources"),
    [
        (a_model(), []),
        (a_model(own="own"), ["own"]),
        (a_model(own="own", for_tools="tools"), ["own", "tools"]),
        (a_model("the operator's", own="own", for_tools="tools"), ["the operator's"]),
    ],
)
def test_the_templates_that_a_model_would_be_served_with_are_tried(model, sources):
    tried = []
    template_trials.check(model, Trials(), tried.append)
    assert tried == sources


def test_a_template_is_tried_once(tmp_path):
    tried = []
    for own in ("a", "a", "b"):
        template_trials.check(a_model(own=own), Trials(tmp_path / "store"), tried.append)
    assert tried == ["a", "b"]


def test_a_dangerous_template_fails_the_load_each_time():
    def run(source):
        tried.append(source)
        raise TemplateDangerous("the chat template computes for more than 20 s")

    tried, trials = [], Trials()
    for _ in range(2):
        with pytest.raises(LoadFailed, match="more than 20 s; use --chat-template"):
            template_trials.check(a_model(own="a"), trials, run)
    assert tried == ["a", "a"]


def test_a_wrong_template_does_no_harm():
    """Its model completes texts all the same."""

    def run(source):
        raise TemplateError("line 1")

    template_trials.check(a_model(own="a"), Trials(), run)
