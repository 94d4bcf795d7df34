"""A user's mistake is a Python exception at the user's line, in every mode."""

import re
import traceback
import warnings

import pytest
import torch

import torchtpu
from torchtpu.errors import TorchTPUError, UnsupportedDtypeError

pytestmark = pytest.mark.usefixtures("mode")


def test_mismatched_shapes_at_the_users_line():
    with pytest.raises(RuntimeError) as caught:
        torch.ones(3, 6, device="tpu") @ torch.ones(4, 2, device="tpu")  # this line
    text = str(caught.value)
    assert re.search(r"\[?3.*6.*4.*2", text)
    users = [frame for frame in traceback.extract_tb(caught.value.__traceback__) if frame.filename == __file__]
    assert users[-1].line.endswith("# this line")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    "mistake",
    [
        lambda D: torch.ones(2, 3, device=D) + torch.ones(4, device=D),
        lambda D: torch.ones(2, device=D).view(3),
        lambda D: torch.ones(2, 3, device=D).sum(5),
        lambda D: torch.ones(2, 3, device=D)[5],
        lambda D: torch.cat([torch.ones(2, 3, device=D), torch.ones(2, 4, device=D)]),
        lambda D: torch.ones(2, device=D).copy_(torch.ones(3)),
        lambda D: torch.ones(2, device=D, dtype=torch.int64) / 0 @ torch.ones(3, device=D),
        lambda D: torch.ones(2, device=D).resize_(-1),
        lambda D: torch.empty(-2, device=D),
        lambda D: torch.nn.functional.linear(torch.ones(2, 3, device=D), torch.ones(4, 2, device=D)),
        lambda D: torch.ones(2, 2, device=D).item(),
    ],
)
def test_the_same_exception_type_as_on_the_cpu(mistake):
    with pytest.raises(Exception) as on_cpu:
        mistake("cpu")
    with pytest.raises(type(on_cpu.value)):
        mistake("tpu")


@pytest.mark.parametrize(
    "mix",
    [
        lambda t, h: t + h,
        lambda t, h: h + t,
        lambda t, h: h.add_(t),
        lambda t, h: t @ h,
        lambda t, h: torch.cat([t, h]),
        lambda t, h: torch.where(t > 0, t, h),
        lambda t, h: torch.nn.functional.linear(t, h),
    ],
)
def test_two_devices(mix):
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device, but found at least two devices"):
        mix(torch.ones(2, 2, device="tpu"), torch.ones(2, 2))


def test_a_number_on_the_cpu_may_join():
    assert (torch.ones(2, device="tpu") * torch.tensor(3.0)).tolist() == [3, 3]


@pytest.mark.parametrize(
    "make", [lambda: torch.zeros(2, dtype=torch.complex32, device="tpu"), lambda: torch.ones(2).to("tpu", torch.complex32)]
)
def test_dtypes_that_xla_lacks(make):
    with (
        warnings.catch_warnings(),
        pytest.raises(UnsupportedDtypeError, match=r"complex32 has no counterpart in XLA.*Use one of"),
    ):
        warnings.simplefilter("ignore")
        make()


@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("sparse", lambda: torch.ones(2, device="tpu").to_sparse()),
        ("sparse", lambda: torch.eye(2).to_sparse().to("tpu")),
        ("quantized", lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8).to("tpu")),
    ],
)
def test_sparse_and_quantized_tensors(what, make):
    with warnings.catch_warnings(), pytest.raises(NotImplementedError, match=f"{what} tensors are not supported on tpu"):
        warnings.simplefilter("ignore")
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(1 << 50, device="tpu"),
        lambda: torch.zeros(1 << 30, 1 << 20, device="tpu"),
        lambda: torch.ones(1 << 20, 1, device="tpu") * torch.ones(1, 1 << 20, device="tpu"),
        lambda: torch.ones(1, device="tpu").repeat(1 << 50),
        lambda: torch.ones(1, device="tpu").resize_(1 << 50),
        lambda: torch.UntypedStorage(1 << 50, device="tpu"),
        lambda: torch.randn(1 << 50, device="tpu"),
    ],
)
def test_too_large_at_the_line_that_asks(make):
    before = torch.tpu.memory_allocated()
    with pytest.raises(
        torch.OutOfMemoryError, match=r"tpu out of memory: .* needs [\d.]+ GiB, [\d.]+ \w+ of [\d.]+ GiB are in use"
    ):
        make()
    assert torch.ones(2, device="tpu").sum().item() == 2
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() <= before + (1 << 24)


@pytest.mark.parametrize("name", ["_saturate_weight_to_fp16", "fbgemm_linear_quantize_weight", "fbgemm_pack_gemm_matrix_fp16"])
def test_ops_that_would_read_an_address_of_ours(name):
    with pytest.raises(NotImplementedError, match="works on the CPU's memory only"):
        getattr(torch, name)(torch.ones(3, 3, device="tpu"))


def test_meta_tensors_have_no_data():
    with pytest.raises(NotImplementedError, match="meta"):
        torch.ones(2, device="meta").to("tpu")


def test_an_error_in_backward_is_that_error():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g @ torch.ones(3, 3, device="tpu")

    x = torch.ones(2, 2, device="tpu", requires_grad=True)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        Broken.apply(x).sum().backward()
    (x * 3).sum().backward()
    assert x.grad.tolist() == [[3, 3], [3, 3]]


def test_a_forked_process_is_told(mode):
    import multiprocessing

    torch.ones(1, device="tpu").item()
    shared = torch.ones(2, device="tpu") + 1  # pending in defer_and_fuse
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)

    def child():
        texts = []
        for use in (
            lambda: shared.tolist(),
            lambda: shared + 1,
            lambda: torch.ones(1, device="tpu"),
            lambda: torch.ones(1).to("tpu"),
            lambda: shared.copy_(torch.ones(2)),
            lambda: repr(shared),
            torch.tpu.synchronize,
            lambda: torchtpu.to_jax(shared),
        ):
            try:
                use()
                texts.append("nothing raised")
            except TorchTPUError as error:
                texts.append(str(error))
        torch.manual_seed(0)  # as a DataLoader worker does
        torch.tpu.eager_mode = "debug"
        send.send(texts)

    process = context.Process(target=child)
    process.start()
    assert receive.poll(60), "the forked process hangs"
    texts = receive.recv()
    process.join()
    assert all("cannot be used in a forked process" in text for text in texts), texts
    assert shared.tolist() == [2, 2]
