"""Every fault of the list has a test, or a reason why it has none.

A test carries its number in its name (`test_09_...`) when it is in this folder; the others are named here. Numbers:

    1-14 HTTP      15-23 JSON       24-36 parameters     37-42 grammars     43-58 engine
    59-76 process  77-79 proxy      80-90 security
"""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]

ELSEWHERE = {
    42: "model/test_constraints.py",
    43: "engine/test_engine.py::test_out_of_cells_in_the_library_fails_no_sequence",
    45: "engine/test_engine.py::test_a_failing_batch_fails_only_its_sequences",
    46: "engine/test_engine.py::test_lanes_of_a_failed_batch_are_not_reused",
    47: "conf/test_systemd.py::test_an_engine_that_does_not_move_starves_the_watchdog_and_its_process_is_replaced",
    48: "engine/test_engine.py::test_nan_logits_fail_one_sequence",
    49: "engine/test_engine.py::test_cancel_frees_its_cells_within_one_step",
    51: "engine/test_many_at_once.py",
    54: "engine/test_engine.py::test_a_prompt_longer_than_the_context_is_refused_before_anything_is_taken",
    55: "clients/test_bad_input.py",
    56: "engine/test_engine.py::test_no_part_of_a_stop_string_is_delivered",
    57: "engine/test_engine.py::test_choices_of_one_request_share_a_stream_and_a_prompt",
    58: "engine/drafts/test_drafts.py::test_drafts_change_nothing_for_a_sequence_alone",
    74: "engine/kv/test_disk_tier.py::test_a_damaged_file_is_ignored_or_deleted",
    76: "conf/test_systemd.py::test_an_engine_that_does_not_move_starves_the_watchdog_and_its_process_is_replaced",
    77: "conf/test_nginx.py::test_events_pass_as_they_come",
    79: "conf/test_nginx.py::test_only_a_request_that_leaves_nothing_behind_is_sent_again",
    85: "web/test_auth.py::test_a_page_that_points_its_own_name_here_is_refused",
    90: "chat/test_parser.py::test_arguments_that_stop_being_json_are_passed_as_written_and_incomplete",
}

NOT_HERE = {
    11: "HTTP/2 ends at nginx, whose own bounds hold there (http2_max_concurrent_streams in conf/nginx.conf)",
    44: "no decode is ever aborted: the library is given no callback that could; one that fails is 45",
    65: "the kernel's own memory shortage cannot be staged without a control group; bounds of every cache are tested "
    "where they are (engine/kv/test_host_tier.py, engine/test_engine.py), an allocation that fails is 43",
    69: "a mapped file that is cut short ends the process by SIGBUS, which is 63; README says to replace files by renaming",
    75: "needs a GPU to lose; a decode that fails for good is 45",
}


def numbers_in(folder):
    found = set()
    for path in folder.glob("test_*.py"):
        for name in re.findall(r"def test_((?:\d\d_)+)", path.read_text("utf-8")):
            found |= {int(number) for number in name.strip("_").split("_")}
    return found


def test_every_number_has_a_test_or_a_reason():
    here = numbers_in(TESTS / "faults")
    assert not here & (set(ELSEWHERE) | set(NOT_HERE)) - {4}
    assert here | set(ELSEWHERE) | set(NOT_HERE) == set(range(1, 91))


def test_what_is_tested_elsewhere_is():
    for number, where in ELSEWHERE.items():
        path, _, name = where.partition("::")
        assert (TESTS / path).is_file(), number
        assert not name or f"def {name}(" in (TESTS / path).read_text("utf-8"), number
