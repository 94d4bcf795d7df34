"""The account of device memory while it is watched."""

import gc

import numpy as np
import pytest

from torchtpu import hbm, ledger
from torchtpu.buffer import Buffer
from torchtpu.layout import Layout

F32 = np.dtype(np.float32)


def buffer(kib: int) -> Buffer:
    """A buffer of some KiB; the account never looks at the array."""
    return Buffer(Layout((kib, 256), F32), array=object())


@pytest.fixture
def open_ledger():
    gc.collect()  # other tests' buffers
    book = ledger.start()
    yield book
    ledger.stop(book)
    assert hbm.usage.trace is None


def sizes(held: list[ledger.Held]) -> list[int]:
    return sorted(h.nbytes // 1024 for h in held)


def test_peak_and_end(open_ledger):
    a = buffer(1)
    b = buffer(2)
    del b
    c = buffer(1)
    account = open_ledger.close()
    assert account.peak - account.before == 3 * 1024
    assert account.live - account.before == 2 * 1024
    assert sizes([h for h in account.held_at_peak if not h.earlier]) == [1, 2]
    assert sizes([h for h in account.held_at_end.values() if not h.earlier]) == [1, 1]
    assert a is not c


def test_what_was_there_before_counts():
    kept, dropped = buffer(4), buffer(8)
    book = ledger.start()
    late = buffer(1)
    del dropped
    account = book.close()
    ledger.stop(book)
    assert sizes(account.held_at_peak) == [1, 8]
    assert sum(h.nbytes for h in account.held_at_peak) + account.earlier_alive == account.peak
    assert sizes(account.held_at_end.values()) == [1]
    assert account.earlier_alive + 1024 == account.live == hbm.usage.live
    assert kept.nbytes + late.nbytes == 5 * 1024


def test_nothing_made_means_the_peak_is_the_start():
    first, second = buffer(4), buffer(8)
    book = ledger.start()
    del first
    account = book.close()
    ledger.stop(book)
    assert account.peak == account.before == sum(h.nbytes for h in account.held_at_peak) + account.earlier_alive
    assert sizes(account.held_at_peak) == [4]
    assert second.nbytes == 8 * 1024


def test_a_running_program_counts_towards_the_peak(open_ledger):
    a = buffer(1)
    hbm.run("fused_3_ops", 0, 0, 16 * 1024)
    b = buffer(2)
    account = open_ledger.close()
    assert account.peak - account.before == 17 * 1024
    assert [h.nbytes for h in account.held_at_peak if h.what == "fused_3_ops"] == [16 * 1024]
    assert a.nbytes + b.nbytes == 3 * 1024


def test_a_long_watch_is_folded(open_ledger, monkeypatch):
    monkeypatch.setattr(ledger, "_LOOK_BACK", 10)
    kept = []
    for n in range(100):
        kept.append(buffer(1))
        if n % 2:
            kept.pop()
        if n == 50:
            top = buffer(1024)
            del top
    account = open_ledger.close()
    assert account.peak - account.before == (26 + 1024) * 1024
    assert sizes([h for h in account.held_at_peak if not h.earlier]) == [1] * 26 + [1024]
    assert sizes([h for h in account.held_at_end.values() if not h.earlier]) == [1] * 50


def test_nested_ledgers_each_see_their_part():
    outer = ledger.start()
    a = buffer(1)
    inner = ledger.start()
    b = buffer(2)
    ledger.stop(inner)
    c = buffer(4)
    ledger.stop(outer)
    accounts = outer.close(), inner.close()
    assert [acc.peak - acc.before for acc in accounts] == [7 * 1024, 2 * 1024]
    assert sizes([h for h in accounts[1].held_at_peak if not h.earlier]) == [2]
    assert a.nbytes + b.nbytes + c.nbytes == 7 * 1024


def test_a_ledger_keeps_nothing_alive(open_ledger):
    before = hbm.usage.live
    a = buffer(1)
    del a
    assert hbm.usage.live == before


def test_empty_buffers_take_no_row(open_ledger):
    a = Buffer(Layout((0,), F32), array=object())
    account = open_ledger.close()
    assert [h for h in account.held_at_end.values() if not h.earlier] == []
    assert a.nbytes == 0
