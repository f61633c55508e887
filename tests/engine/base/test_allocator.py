import ctypes
import mmap
import sys

import numpy as np
import pytest

from llamasrv.engine.base.allocator import drop_zeros

PAGES = 64


def resident(memory):
    """Number of resident pages."""
    there = (ctypes.c_ubyte * PAGES)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert not libc.mincore(ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(memory.nbytes), there)
    return sum(one & 1 for one in there)


@pytest.fixture
def memory():
    """Written pages that contain zeros."""
    made = np.frombuffer(mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    made[:] = 1
    made[:] = 0
    return made


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory is kept")
def test_zero_pages_are_returned_and_usable(memory):
    """The library clears 25 rows of logits if 8 sequences run: 10 MiB of a large vocabulary, for nothing."""
    drop_zeros(memory.ctypes.data + 1, memory.nbytes - 1)
    assert resident(memory) == 1  # the first one does not lie within these bytes as a whole
    assert not memory.any()
    memory[-1] = 5
    assert memory[-1] == 5 and memory.sum() == 5


def test_pages_with_data_are_kept(memory):
    memory[3 * mmap.PAGESIZE] = 7
    drop_zeros(memory.ctypes.data, memory.nbytes)
    assert memory[3 * mmap.PAGESIZE] == 7 and resident(memory) == PAGES


def test_less_than_a_page_is_left_alone(memory):
    drop_zeros(memory.ctypes.data + 8, mmap.PAGESIZE)
    assert resident(memory) == PAGES
