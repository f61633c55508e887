"""A model is freed with its last holder: a job that outlived it read freed memory."""

import threading

from llamasrv.engine.backend.model_handle import ModelHandle


def test_the_last_holder_frees_the_model_once():
    freed = []
    handle = ModelHandle("model", freed.append)
    assert handle.hold() and handle.hold()
    handle.release()
    handle.release()
    assert not freed
    handle.release()
    assert freed == ["model"]


def test_a_freed_model_cannot_be_held():
    freed = []
    handle = ModelHandle("model", freed.append)
    handle.release()
    assert not handle.hold() and freed == ["model"]


def test_many_threads_may_hold_and_release():
    freed = []
    handle = ModelHandle("model", freed.append)
    assert handle.hold()

    def use():
        for _ in range(2000):
            assert handle.hold()
            handle.release()

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    handle.release()
    for thread in threads:
        thread.join()
    assert not freed
    handle.release()
    assert freed == ["model"]
