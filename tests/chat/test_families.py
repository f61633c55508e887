"""The table of what cannot be learned: no row without a reason and a template that needs it, no model named elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_vectors import LATER_VECTORS, VECTORS
from vectors import COLLECTION, comparable, run, template_of

import llamasrv.chat
from llamasrv.chat import probe
from llamasrv.chat.families import TABLE, WRAPPED, known_families

MODELS = re.compile(
    r"(?i)apertus|apriel|baichuan|bielik|claude|cohere|command.?[ar]\b|deepseek|devstral|exaone|falcon|firefunction|"
    r"functionary|gemma|gigachat|\bglm|\bgpt|granite|harmony|hermes|hunyuan|hyperclova|inkling|internlm|jamba|kimi|laguna|"
    r"\blfm|\bllama(?!srv|-server|_server|\.cpp|_cpp)|magistral|mimo\b|minimax|ministral|mistral|nemotron|olmo|\bphi\b|qwen|"
    r"\bseed\b|smollm|solar|toolace|xlam"
)
FILES = sorted(Path(llamasrv.chat.__file__).parent.rglob("*.py"))


def test_no_model_is_named_outside_of_the_table():
    named = {
        f"{path.name}: {line.strip()}"
        for path in FILES
        for line in path.read_text(encoding="utf-8").splitlines()
        if path.name != "families.py" and MODELS.search(line)
    }
    assert named == set()
    assert MODELS.search((FILES[0].parent / "families.py").read_text(encoding="utf-8"))


def test_each_row_says_why_it_cannot_be_learned():
    assert all(len(row.why.split()) > 3 and row.words for row in (*TABLE, *WRAPPED))


@pytest.mark.skipif(not COLLECTION.is_dir(), reason="the collection is not there")
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.format.name)
def test_a_row_is_needed_by_a_template_of_the_collection(row, monkeypatch):
    """Without it calls are not learned, something does not come back, or what its model wrote is read otherwise."""
    sources = {path.name: path.read_text(encoding="utf-8") for path in COLLECTION.glob("*.jinja")}
    sources = {name: source for name, source in sources.items() if row.format in known_families(source)}
    monkeypatch.setattr(probe, "known_families", lambda source: ())
    sources = {name: source + "{# without the table #}" for name, source in sources.items()}  # learned anew

    def is_learned(name: str) -> bool:
        format = template_of(sources[name])[1]
        return (
            format.learned
            and not format.unsure
            and all(
                comparable(run(sources[name], vector["request"], [vector["model_output"]]))
                == comparable(vector["expect"])
                for vector in (*VECTORS, *LATER_VECTORS)
                if vector["template"] == name
            )
        )

    assert not all(map(is_learned, sources))
