"""Real threads beside greenlets."""

import subprocess
import sys
import textwrap

from patched_interpreter import PATCHED, run

from llamasrv.concurrency import Mailbox, RealThread


def test_a_mailbox_gives_everything_at_once():
    box = Mailbox()
    for i in range(3):
        box.put(i)
    assert box.take() == [0, 1, 2]
    assert box.take() == [] and box.take(0.001) == []


def test_a_wait_at_a_mailbox_ends_though_its_time_is_over_before_it_begins():
    """On a busy machine this happens with any timeout; SimpleQueue then waits for the next command."""
    assert [Mailbox().take(1e-6) for _ in range(20_000)] == [[]] * 20_000


def test_a_mailbox_loses_nothing_that_many_threads_put():
    box, got = Mailbox(), []
    threads = [RealThread(lambda: [box.put(i) for i in range(5_000)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.alive for thread in threads) or not box.is_empty:
        got += box.take(1e-5)
    assert sorted(got) == sorted([*range(5_000)] * 3)


def test_a_command_ends_the_wait_at_a_mailbox():
    box, answers, rounds = Mailbox(), Mailbox(), 2_000
    thread = RealThread(lambda: [answers.put(box.take(60)) for _ in range(rounds)])
    thread.start()
    for i in range(rounds):
        box.put(i)
        assert answers.take(60) == [[i]]
    thread.wait()


def test_the_hub_runs_on_while_a_real_thread_computes():
    out = run(
        PATCHED
        + """
    ticks = []
    def tick():
        while True: ticks.append(1); gevent.sleep(0.001)
    gevent.spawn(tick)
    thread = RealThread(lambda: real_sleep(0.2)); thread.start()
    thread.join(5)
    print(len(ticks) > 20)
    """
    )
    assert out == ["True"]


def test_everybody_has_a_turn_at_each_breath():
    """The hub polled its sockets after fifty breaths only: long loops on it held everybody up for 30 to 50 ms."""
    out = run(
        PATCHED
        + """
    from gevent import get_hub
    from llamasrv.concurrency import breathe
    loop, turns = get_hub().loop, []
    def work():
        for _ in range(40): breathe(); turns.append(loop.iteration)
    gevent.joinall([gevent.spawn(work)])
    print(len(set(turns)))
    """
    )
    assert out == ["40"]


def test_what_goes_wrong_on_another_thread_is_raised_here_and_written_nowhere():
    """The pool wrote a traceback to standard error for each, also for what was only a client's mistake."""
    code = (
        PATCHED
        + """
    from llamasrv.concurrency import off_hub
    def fail(text): raise ValueError(text)
    try: off_hub(fail, "no")
    except ValueError as error: print(error, off_hub(len, "four"))
    """
    )
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert (result.stdout.split(), result.stderr) == (["no", "4"], "")
