"""Decisions in three dialects: the recorded requests of five SDKs, limits and errors, one body against another."""

import base64
import json
from pathlib import Path

import pytest

from llamasrv.domain.decide import Decided, DecisionSettings
from llamasrv.engine.backend.fake_projector import FakeProjector
from llamasrv.protocols.common.decisions import choice_confidence, score_confidence

RECORDED = Path(__file__).resolve().parents[2].parent / "shared" / "decisions"
TEXT = "I was charged twice for order 1873."
PREDICATE = {"type": "predicate", "instructions": "The customer asks for money back."}
CHOICE = {"type": "choice", "name": "team", "instructions": "Who?", "choices": [{"value": "a"}, {"value": True}]}
SCORE = {"type": "score", "name": "n", "instructions": "How?", "levels": [{"label": "low"}, {"label": "high"}]}
NOULS = {"q": {"type": "noul", "instructions": "The customer asks for money back."}}


@pytest.fixture(scope="module")
def deciding():
    from serving import RunningService

    service = RunningService(
        aliases=("demo",),
        model={"decisions": DecisionSettings(0.0)},
        num_cells=32768,
        context=8192,
        projector=FakeProjector(),
    )
    yield service
    service.close()


@pytest.fixture
def ask(deciding):
    def post(path, body, headers=None):
        response = deciding.client.post(path, json=body, headers=headers)
        return response.status_code, response.get_json()

    return post


def openai(*questions, **more):
    return {"model": "demo", "input": TEXT, "questions": list(questions), **more}


# ------------------------------------------------------------ what SDKs sent


def recorded():
    for path in sorted(RECORDED.glob("*.json")):
        told = json.loads(path.read_text("utf-8"))
        cases = told.get("cases", []) if isinstance(told, dict) else told
        for case in cases:
            if path.stem != "errors" and "request" in case:
                yield pytest.param(case, id=f"{path.stem}: {case['name']}")


def shape(value):
    """Keys and types; numbers are numbers."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items() if not key.startswith("x_")}
    if isinstance(value, list):
        return [shape(one) for one in value]
    if isinstance(value, bool) or value is None:
        return value
    return "number" if isinstance(value, (int, float)) else "text"


@pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded requests lie outside of the repository")
@pytest.mark.parametrize("case", list(recorded()))
def test_a_recorded_request_is_answered_in_the_recorded_shape(deciding, case):
    asked = case["request"]
    names = {"content-type", "content-encoding", "x-goog-api-client"}
    headers = {name: value for name, value in asked["headers"].items() if name.lower() in names}
    raw = asked.get("raw_base64")
    data = base64.b64decode(raw) if raw else json.dumps(asked["body"]) if asked["body"] is not None else None
    response = deciding.client.open(asked["path"], method=asked["method"], data=data, headers=headers)
    body, wanted = response.get_json(), case["response"]["body"]
    assert response.status_code == 200, body
    if asked["path"] == "/v1/models":
        assert all(type(body["models"][0][name]) is str for name in wanted["models"][0])
        return
    found, expected = shape(body), shape(wanted)
    assert expected["usage"].keys() <= found.pop("usage").keys()
    del expected["usage"]
    assert found == expected


# ------------------------------------------------------------ three dialects


def test_the_same_question_has_the_same_answer_by_three_wires(ask):
    options = {"billing": "Payments", "technical": ""}
    _, one = ask(
        "/v1/decisions",
        openai(
            {
                "type": "choice",
                "instructions": "Who?",
                "choices": [{"value": "billing", "description": "Payments"}, {"value": "technical"}],
            }
        ),
    )
    criteria = {"type": "choice", "instructions": "Who?", "criteria": options}
    _, two = ask("/v1beta/decisions", {"model": "models/demo", "input": TEXT, "questions": {"q": criteria}})
    _, three = ask("/v1/systemone", {"model": "demo", "state": TEXT, "questions": {"q": criteria}})
    p = {row["value"]: row["probability"] for row in one["answers"][0]["probabilities"]}
    assert p == two["answers"]["q"]["probabilities"] == three["answers"]["q"]["probabilities"]
    counts = one["usage"]["input_tokens"], two["usage"]["total_input_tokens"], three["usage"]["input_tokens"]
    assert len(set(counts)) == 1


def test_one_path_takes_three_bodies(ask):
    assert "probability" in ask("/v1/decisions", openai(PREDICATE))[1]["answers"][0]
    assert "noul" in ask("/v1/decisions", {"model": "demo", "input": TEXT, "questions": NOULS})[1]["answers"]["q"]
    assert ask("/v1/decisions", {"model": "demo", "state": TEXT, "questions": NOULS})[1]["usage"]["output_tokens"] == 0


def test_answers_add_up_and_are_in_order(ask):
    _, body = ask("/v1/decisions", openai(PREDICATE, CHOICE, SCORE))
    predicate, choice, score = body["answers"]
    assert predicate["name"] is None and 0 <= predicate["probability"] <= 1
    assert [row["value"] for row in choice["probabilities"]] == ["a", True]
    assert sum(row["probability"] for row in choice["probabilities"]) == pytest.approx(1, abs=1e-9)
    best = max(choice["probabilities"], key=lambda row: row["probability"])
    assert choice["choice"] == best["value"] and choice["x_label_mass"] > 0
    assert score["score"] == pytest.approx(score["probabilities"][1]["probability"])
    assert body["usage"]["total_tokens"] == body["usage"]["input_tokens"] > len(TEXT)


def test_a_repeated_request_finds_its_input(ask):
    body = openai(PREDICATE, input=TEXT + " Once more, with the same input.")
    ask("/v1/decisions", body)
    _, again = ask("/v1/decisions", body)
    assert again["usage"]["input_tokens_details"]["cached_tokens"] >= len(body["input"])


def test_the_answer_does_not_depend_on_order_where_several_are_averaged(ask):
    def of(*values):
        choices = [{"value": value} for value in values]
        question = {"type": "choice", "instructions": "Which?", "choices": choices}
        _, body = ask("/v1/decisions", openai(question, x_orders=3))
        return {row["value"]: row["probability"] for row in body["answers"][0]["probabilities"]}

    assert of("b", "c", "a") == pytest.approx(of("c", "a", "b"), abs=1e-6)


@pytest.mark.parametrize(
    ("path", "body", "refused"),
    [
        ("/v1/decisions", openai(PREDICATE), lambda b: b["answers"][0]["type"] == "refusal"),
        ("/v1/systemone", {"model": "fake", "state": TEXT, "questions": NOULS}, lambda b: b["answers"] == {}),
        (
            "/v1beta/decisions",
            {"model": "fake", "input": TEXT, "questions": NOULS},
            lambda b: "answers" not in b and b["prompt_feedback"]["block_reason"],
        ),
    ],
)
def test_too_little_mass_is_the_dialects_refusal(start, path, body, refused):
    service = start(model={"decisions": DecisionSettings(1.0)})
    response = service.client.post(path, json={**body, "model": "fake"})
    assert response.status_code == 200 and refused(response.get_json())


def test_255_options_and_400_questions(ask):
    choices = [{"value": f"option {n}"} for n in range(255)]
    status, body = ask("/v1/decisions", openai({"type": "choice", "instructions": "Which?", "choices": choices}))
    assert status == 200 and len(body["answers"][0]["probabilities"]) == 255
    status, body = ask("/v1/decisions", openai(*[PREDICATE] * 400))
    assert status == 200 and len(body["answers"]) == 400


# ------------------------------------------------------------ errors


@pytest.mark.parametrize(("body", "param", "code"), [
    (openai(), "questions", "empty_array"),
    (openai(*[PREDICATE] * 401), "questions", "array_above_max_length"),
    ({"model": "demo", "questions": [PREDICATE]}, "input", "missing_required_parameter"),
    ({"input": "x", "questions": [PREDICATE]}, "model", "missing_required_parameter"),
    (openai(PREDICATE, {"type": "predicate"}), "questions[1].instructions", "missing_required_parameter"),
    (openai({**CHOICE, "choices": [{"value": 1}, {"value": "a"}]}), "questions[0].choices[0].value", "invalid_type"),
    (openai({**CHOICE, "choices": [{"value": "a"}] * 2}), "questions[0].choices[1].value", "invalid_value"),
    (openai({**CHOICE, "choices": [{"value": "a"}]}), "questions[0].choices", "array_below_min_length"),
    (openai({**SCORE, "levels": [{"label": "x"}] * 11}), "questions[0].levels", "array_above_max_length"),
    (openai({**PREDICATE, "instruction": "x"}), "questions[0].instruction", "unknown_parameter"),
    (openai({**PREDICATE, "type": "box"}), "questions[0].type", "invalid_value"),
    (openai(PREDICATE, input=[{"type": "function_call_output", "call_id": "c", "output": "x"}]), "input[0].call_id",
     "invalid_value"),
    (openai(PREDICATE, input=[{"type": "reasoning"}]), "input[0].type", "invalid_value"),
    (openai(PREDICATE, x_orders=9), "x_orders", "invalid_value"),
    (openai(PREDICATE, x_thinking_tokens=-1), "x_thinking_tokens", "invalid_value"),
    (openai(PREDICATE, x_thinking_tokens=8), "x_thinking_tokens", None),  # the model does not think
    (openai({**PREDICATE, "instructions": "so? " * 4000}), "questions[0]", "context_length_exceeded"),
])  # fmt: skip
def test_openais_errors_name_the_field(ask, body, param, code):
    status, told = ask("/v1/decisions", body)
    assert (status, told["error"]["param"], told["error"]["code"]) == (400, param, code)


def test_a_nested_json_part_is_bounded(ask):
    deep = {"a": {}}
    for _ in range(40):
        deep = {"a": deep}
    part = {"role": "user", "content": [{"type": "input_json", "data": deep}]}
    status, told = ask("/v1/decisions", openai(PREDICATE, input=[part]))
    assert (status, told["error"]["param"]) == (400, "input[0].content[0].data")


@pytest.mark.parametrize(
    ("questions", "param"),
    [
        ({}, "questions"),
        ({"q": {"type": "choice", "instructions": "?"}}, "questions.q.criteria"),
        ({"q": {"type": "choice", "instructions": "?", "criteria": {" a": "", "b": ""}}}, "questions.q.criteria. a"),
        ({"q": {"type": "noul"}}, "questions.q.instructions"),
        ({"q": {"type": "box"}}, "questions.q.instructions"),
    ],
)
def test_googles_errors_name_the_field(ask, questions, param):
    status, told = ask("/v1beta/decisions", {"model": "demo", "input": "x", "questions": questions})
    assert status == 400 and told["error"]["status"] == "INVALID_ARGUMENT" and param in told["error"]["message"]


def test_a_body_decides_the_dialect_of_its_errors(ask):
    _, google = ask("/v1/decisions", {"model": "none", "input": "x", "questions": NOULS})
    _, other = ask("/v1/decisions", {"model": "none", "state": "x", "questions": NOULS})
    assert google["error"]["status"] == "NOT_FOUND" and other["detail"]["error_type"] == "model_not_found"


def test_googles_client_gets_its_own_errors_before_a_body_is_read(ask):
    _, told = ask("/v1/decisions", {}, {"x-goog-api-client": "google-genai-sdk/3.4.0"})
    assert told["error"]["status"] == "INVALID_ARGUMENT"


def test_system_ones_errors(ask):
    status, told = ask("/v1/systemone", {"model": "demo", "state": "x", "questions": {"q": {"type": "choice"}}})
    assert status == 422 and told["detail"][0]["loc"] == ["body", "questions", "q", "choice", "criteria"]
    status, told = ask("/v1/systemone", {"model": "demo", "state": "so? " * 9000, "questions": NOULS})
    assert status == 413 and told["detail"]["error_type"] == "context_length_exceeded"


def test_system_ones_answer_has_a_request_id(deciding):
    response = deciding.client.post("/v1/systemone", json={"model": "demo", "state": "x", "questions": NOULS})
    assert response.headers["x-typesafe-request-id"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"--b--\r\n",
        b'--b\r\nContent-Disposition: form-data; name="other"\r\n\r\nx\r\n--b--\r\n',
        b'--b\r\nContent-Disposition: form-data; name="request"\r\n\r\n{"model":\r\n--b--\r\n',
    ],
)
def test_a_form_that_is_none_is_refused(deciding, data):
    response = deciding.client.post("/v1/systemone", data=data, content_type="multipart/form-data; boundary=b")
    assert 400 <= response.status_code < 500 and "detail" in response.get_json()


# ------------------------------------------------------------ numbers


@pytest.mark.parametrize(("p", "confidence"), [((0.94, 0.06), 0.88), ((1.0,), 1.0), ((0.25,) * 4, 0.0)])
def test_confidence_of_a_choice(p, confidence):
    assert choice_confidence(Decided(p, 1.0)) == pytest.approx(confidence)


@pytest.mark.parametrize(("p", "confidence"), [((4 / 7, 2 / 7, 1 / 7), 1 / 7), ((1.0, 0.0), 1.0), ((1.0,), 1.0)])
def test_confidence_of_a_score(p, confidence):
    assert score_confidence(Decided(p, 1.0)) == pytest.approx(confidence)
