"""`torch.tpu` and `torch.accelerator`: the device, its memory, its stream, its modes."""

import pytest
import torch

import torchtpu


def test_one_device():
    assert torch.accelerator.current_accelerator() == torch.device("tpu")
    assert torch.accelerator.is_available()
    assert torch.tpu.is_available()
    for api in (torch.tpu, torch.accelerator):
        assert api.device_count() == 1
    assert torch.tpu.current_device() == torch.accelerator.current_device_index() == 0
    torch.tpu.set_device("tpu:0")
    torch.tpu.set_device(0)
    torch.accelerator.set_device_index(0)
    with torch.tpu.device(0), torch.tpu.device_of(torch.ones(1)), torch.accelerator.device_index(0):
        assert torch.ones(1, device="tpu").get_device() == 0


@pytest.mark.parametrize(
    "use",
    [
        lambda: torch.tpu.set_device(1),
        lambda: torch.tpu.device("tpu:1"),
        lambda: torch.tpu.synchronize(1),
        lambda: torch.tpu.memory_allocated(3),
        lambda: torch.accelerator.set_device_index(1),
        lambda: torch.accelerator.synchronize("tpu:1"),
        lambda: torch.accelerator.device_index(1).__enter__(),
        lambda: torch.ones(2, device="tpu:1"),
        lambda: torch.ones(2).to("tpu:1"),
        lambda: torch.ones(2).tpu(1),
        lambda: torch.UntypedStorage(3, device="tpu:1"),
    ],
)
def test_there_is_no_second_device(use):
    with pytest.raises(RuntimeError, match=r"invalid device tpu:\d: this process has one device, tpu:0"):
        use()


def test_other_devices_are_refused():
    with pytest.raises(ValueError, match="expected a tpu device, got cpu"):
        torch.tpu.set_device("cpu")


def test_properties():
    properties = torch.tpu.get_device_properties()
    assert properties.name == torch.tpu.get_device_name("tpu") == "cpu"
    assert properties.platform == "cpu"
    assert properties.total_memory > 1 << 28
    capability = torch.accelerator.get_device_capability()
    assert {torch.float32, torch.int64, torch.bfloat16} <= capability["supported_dtypes"]
    assert torch.complex32 not in torch.tpu.get_device_capability()["supported_dtypes"]
    assert torch.tpu.is_bf16_supported()


@pytest.mark.parametrize("api", [torch.tpu, torch.accelerator], ids=["tpu", "accelerator"])
def test_memory(api, mode):
    torch.tpu.synchronize()
    api.reset_accumulated_memory_stats()
    before = api.memory_allocated()
    t = torch.ones(1000, device="tpu")
    big = t.repeat(10)
    api.synchronize()
    assert api.memory_allocated() - before == 44_000
    assert api.memory_reserved() == api.memory_allocated()
    del big
    assert api.memory_allocated() - before == 4000
    assert api.max_memory_allocated() - before >= 44_000
    api.reset_peak_memory_stats()
    assert api.max_memory_allocated() == api.memory_allocated()
    stats = api.memory_stats()
    assert stats["allocated_bytes.all.current"] == api.memory_allocated()
    assert stats["allocated_bytes.all.allocated"] - stats["allocated_bytes.all.freed"] == api.memory_allocated() - before
    api.reset_accumulated_memory_stats()
    assert api.memory_stats()["allocated_bytes.all.allocated"] == 0
    api.empty_cache()
    del t
    assert api.memory_allocated() == before


def test_memory_info():
    free, total = torch.accelerator.get_memory_info()
    assert (free, total) == torch.tpu.mem_get_info()
    assert total - free == torch.tpu.memory_allocated()
    torch.accelerator.empty_host_cache()


def test_a_read_of_memory_waits_for_nothing():
    with torch.tpu.set_eager_mode("defer_and_fuse"):
        t = torch.ones(3, device="tpu") + 1
        torch.tpu.memory_allocated()
        assert torchtpu.modes.pending() > 0
        assert t.tolist() == [2, 2, 2]


def test_synchronize_runs_what_is_pending():
    for synchronize in (torch.tpu.synchronize, torch.accelerator.synchronize, torch.accelerator.current_stream().synchronize):
        with torch.tpu.set_eager_mode("defer_and_fuse"):
            t = torch.ones(3, device="tpu") + 1
            assert torchtpu.modes.pending() > 0
            synchronize()
            assert torchtpu.modes.pending() == 0
        assert t.tolist() == [2, 2, 2]


def test_the_stream():
    stream = torch.tpu.current_stream()
    assert isinstance(stream, torch.Stream)
    assert stream == torch.accelerator.current_stream() == torch.tpu.Stream()
    assert stream.device == torch.device("tpu", 0)
    with torch.tpu.stream(stream), torch.tpu.set_eager_mode("defer_and_fuse"):
        t = torch.ones(3, device="tpu") * 2
        event = stream.record_event()
        stream.wait_event(event)
        stream.wait_stream(torch.tpu.Stream())
        t.record_stream(stream)
        while not stream.query():  # would not end if a query left work pending
            pass
        assert event.query()
        event.synchronize()
    assert t.tolist() == [2, 2, 2]


def test_events_measure():
    start, end = (torch.tpu.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.ones(100, 100, device="tpu") @ torch.ones(100, 100, device="tpu")
    end.record()
    assert 0 < start.elapsed_time(end) < 60_000
    with pytest.raises(RuntimeError, match="enable_timing=True and recorded"):
        start.elapsed_time(torch.tpu.Event())


def test_eager_mode():
    modes = torch.tpu.EagerMode
    assert [m.name for m in modes] == ["DEFER_NEVER", "DEFER_NEVER_AND_LAUNCH_BLOCKING", "DEFER_AND_FUSE"]
    before = torch.tpu.eager_mode
    try:
        torch.tpu.eager_mode = "Defer-And-Fuse"
        assert torch.tpu.eager_mode is modes.DEFER_AND_FUSE
        torch.tpu.eager_mode = modes.DEFER_NEVER
        with torch.tpu.set_eager_mode("debug"):
            assert torch.tpu.eager_mode is modes.DEFER_NEVER_AND_LAUNCH_BLOCKING
        assert torch.tpu.eager_mode is modes.DEFER_NEVER
        with pytest.raises(ZeroDivisionError), torch.tpu.set_eager_mode("DEFER_AND_FUSE"):
            raise ZeroDivisionError
        assert torch.tpu.eager_mode is modes.DEFER_NEVER
        with pytest.raises(ValueError, match=r"unknown eager mode 'defer_and_fuze'.*Did you mean 'defer_and_fuse'\?"):
            torch.tpu.eager_mode = "defer_and_fuze"
        with pytest.raises(ValueError, match=r"Did you mean 'debug'\?"), torch.tpu.set_eager_mode("debgu"):
            pass
    finally:
        torch.tpu.eager_mode = before


def test_every_public_name_is_there():
    for name in torch.tpu.__all__:
        assert getattr(torch.tpu, name) is not None
