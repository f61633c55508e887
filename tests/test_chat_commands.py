"""The commands within a conversation of `llamasrv chat`, files in messages, and how answers are shown."""

from __future__ import annotations

import base64

import pytest
from rich.console import Console

from llamasrv.commands import chat_files, chat_terminal
from llamasrv.commands.chat_commands import COMMANDS, Exit, View, carry_out, split_attachment
from llamasrv.commands.chat_files import UnreadableFile
from llamasrv.commands.chat_markdown import MarkdownWriter, markdown, split, visible
from llamasrv.commands.chat_session import ChatSession


def talked(*lines, talk=None):
    """What was said to the last of these lines, and the session."""
    talk, view = talk or ChatSession("http://127.0.0.1:9"), View()
    said = [carry_out(talk, view, line) for line in lines]
    return said[-1], talk


def test_a_conversation_that_was_saved_is_loaded_again(tmp_path):
    talk = ChatSession("http://u", system="Be brief.", turns=[{"role": "user", "content": "Hi ☃"}])
    path = tmp_path / "talk.json"
    assert talked(f"/save {path}", talk=talk)[0].startswith("saved 1 messages")
    assert path.stat().st_mode & 0o777 == 0o600
    said, other = talked(f"/load {path}")
    assert said.startswith("loaded 1 messages") and (other.system, other.turns) == (talk.system, talk.turns)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"system": null, "messages": [1]}', '{"system": 1, "messages": 2}'])
def test_a_file_that_is_no_conversation_changes_nothing(tmp_path, text):
    (tmp_path / "talk.json").write_text(text)
    talk = ChatSession("http://u", turns=[{"role": "user", "content": "Hi"}])
    assert "not a conversation" in talked(f"/load {tmp_path / 'talk.json'}", talk=talk)[0]
    assert "No such file" in talked(f"/load {tmp_path / 'none'}", talk=talk)[0]
    assert len(talk.turns) == 1 and talk.system is None


def test_another_model_answers_from_then_on():
    assert talked("/model demo")[1].model == "demo"


SETTINGS = [
    ("/set parameter temperature 0.5", {"temperature": 0.5}),
    ("/set parameter num_predict 7", {"max_tokens": 7}),
    ('/set parameter stop END "two words"', {"stop": ["END", "two words"]}),
    ("/set think", {"think": True}),
    ("/set think high", {"think": "high"}),
    ("/set nothink", {"think": False}),
    ("/set format json", {"response_format": {"type": "json_object"}}),
]


@pytest.mark.parametrize(("line", "fields"), SETTINGS, ids=[line for line, _ in SETTINGS])
def test_set_becomes_a_field_of_each_request(line, fields):
    assert talked(line)[1].fields == fields


REFUSED = [
    ("/set parameter num_ctx 4096", "num_ctx is set when the server starts: --ctx-size"),
    ("/set parameter warmth 1", "not one of temperature"),
    ("/set parameter top_k many", "expected an integer"),
    ('/set parameter stop "x', "No closing quotation"),
    ("/set wings", "not one of"),
    ("/save", "name a file"),
    ("/nonsense", "/help lists them"),
    ("/model", "Connection refused"),
    ("/image /none.png", "No such file"),
]


@pytest.mark.parametrize(("line", "said"), REFUSED, ids=[line for line, _ in REFUSED])
def test_what_cannot_be_set_says_why_and_changes_nothing(line, said):
    found, talk = talked(line)
    assert said in found and not talk.fields and not talk.attached


def test_a_parameter_goes_back_to_the_default_of_the_model():
    assert talked("/set parameter seed 1", "/set format json", "/set parameter seed", "/set noformat")[1].fields == {}


def test_a_system_prompt_set_in_the_middle_keeps_the_conversation():
    talk = ChatSession("http://u", turns=[{"role": "user", "content": "Hi"}])
    talked("/set system Be brief", talk=talk)
    assert talk.system == "Be brief" and talk.turns
    talked("/system Be long", talk=talk)
    assert talk.system == "Be long" and not talk.turns


@pytest.mark.parametrize("word", ["/exit", "/quit", "/bye"])
def test_it_ends_as_other_programs_do(word):
    with pytest.raises(Exit):
        talked(word)


def test_tab_completes_commands_settings_and_files(tmp_path):
    (tmp_path / "cat.png").touch()
    assert chat_terminal.completions("/s") == sorted(COMMANDS)
    assert "top_k" in chat_terminal.completions("/set parameter ") and "think" in chat_terminal.completions("/set t")
    assert chat_terminal.completions(f"/image {tmp_path}/c") == [f"{tmp_path}/cat.png"]
    assert chat_terminal.completions("what is /s") == chat_terminal.completions("/image /none/") == []


# Files


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("cat.png", "a cat.JPG", "meow.wav", "paper.pdf", "notes.txt", "empty.png", "x.bin"):
        (tmp_path / name).write_bytes(b"" if name.startswith("empty") else b"\xff\x00" if name == "x.bin" else b"data")
    return tmp_path


PATHS = [
    ("what is ./cat.png?", "what is ?", ["./cat.png"]),
    ("~/meow.wav", "", ["~/meow.wav"]),
    ("compare ./cat.png and './a cat.JPG'", "compare  and", ["./cat.png", "./a cat.JPG"]),
    ("see ./a\\ cat.JPG", "see", ["./a cat.JPG"]),
    ("see ./none.png", "see ./none.png", []),
    ("see cat.png", "see cat.png", []),
    ("see http://host/cat.png", "see http://host/cat.png", []),
    ("read ./notes.txt", "read ./notes.txt", []),
]


@pytest.mark.parametrize(("text", "rest", "found"), PATHS, ids=[text for text, *_ in PATHS])
def test_a_path_in_a_message_attaches_an_existing_picture_sound_or_pdf(folder, text, rest, found):
    from pathlib import Path

    assert chat_files.in_text(text) == (rest, [Path(path).expanduser() for path in found])


def test_files_become_parts_of_their_kind(folder):
    data = base64.b64encode(b"data").decode()
    part = lambda name: chat_files.part(folder / name)  # noqa: E731
    assert part("a cat.JPG")["image_url"]["url"] == f"data:image/jpeg;base64,{data}"
    assert part("meow.wav")["input_audio"] == {"data": data, "format": "wav"}
    assert part("paper.pdf")["file"] == {"filename": "paper.pdf", "file_data": f"data:application/pdf;base64,{data}"}
    assert part("notes.txt") == {"type": "text", "text": "File notes.txt:\n\ndata"}
    assert chat_files.content("see ./cat.png")[1] == {"type": "text", "text": "see"}
    assert chat_files.content("see") == "see"


@pytest.mark.parametrize(
    ("name", "why"), [("empty.png", "is empty"), ("x.bin", "neither text nor"), ("none", "No such")]
)
def test_a_file_that_cannot_be_sent_says_why(folder, name, why):
    with pytest.raises(UnreadableFile, match=why):
        chat_files.part(folder / name)


def test_a_file_has_a_largest_size(folder):
    with pytest.raises(UnreadableFile, match="larger than"):
        chat_files.part(folder / "cat.png", largest=3)


def test_what_follows_an_attached_path_is_the_message():
    assert split_attachment("./cat.png what is it?") == ("./cat.png", "what is it?")
    assert split_attachment("'./a cat.png' it's what?") == ("./a cat.png", "it's what?")
    assert split_attachment("./a\\ cat.png") == ("./a cat.png", "")
    assert split_attachment("./it's.png") == ("./it's.png", "")


# Markdown

ANSWER = "# Title\n\ntwo\nlines\n\n```py\nx = 1\n\ny = 2\n```\n\n- a\n- b\n\nend <b>bold</b>\n\n<div>kept</div>\n"


def shown(render):
    console = Console(width=40, height=12, force_terminal=True, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        render(console)
    return capture.get()


def test_an_answer_is_shown_alike_however_it_is_cut():
    """Complete blocks stay; blank lines within a code block do not end it."""
    assert [block.partition("\n")[0] for block in split(ANSWER)[0]] == [
        "# Title",
        "two",
        "```py",
        "- a",
        "end <b>bold</b>",
    ]
    for size in (1, 7, len(ANSWER)):
        blocks, rest = [], ""
        for at in range(0, len(ANSWER), size):
            more, rest = split(rest + ANSWER[at : at + size])
            blocks += more
        assert (blocks, rest) == split(ANSWER)


def test_lines_stay_lines_and_html_is_not_lost():
    lines = [line.strip() for line in shown(lambda console: console.print(markdown(ANSWER))).splitlines()]
    assert {"two", "lines", "end <b>bold</b>"} <= set(lines) and any("<div>kept</div>" in line for line in lines)


def test_an_answer_that_ends_in_the_middle_of_a_block_is_shown_whole():
    def write(console):
        with pytest.raises(KeyboardInterrupt), MarkdownWriter(console) as writer:
            writer.write("first\n\nsecond")
            raise KeyboardInterrupt

    out = shown(write)
    assert "first" in out and out.rstrip().endswith("second")


def test_an_answer_cannot_move_the_cursor():
    assert visible("a\x1b[2J\x07\x9bb\n\tc\r") == "a[2Jb\n\tc"
