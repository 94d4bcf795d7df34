"""Views share memory with their base, in every mode and wherever a read forces the pending work to run.

Each program runs on the CPU and on `tpu`: as it stands, and with all its tensors printed after each of its lines. Most
stand for public reports (their numbers in parentheses; xla is pytorch/xla).
"""

import copy
import io

import pytest
import torch

import torchtpu  # noqa: F401

PROGRAMS = {
    "split shares (xla#3072)": """
base = torch.arange(6, device=D)
lo, hi = base.split(3)
base[4] = 70
lo.add_(10)
out = base, hi
""",
    "as_strided window (xla#2964)": """
base = torch.zeros(7, device=D)
win = base.as_strided((3,), (2,), 1)
win.copy_(torch.tensor([1., 2., 3.], device=D))
out = base
""",
    "a view outlives a read of its base (xla#3291)": """
grid = torch.zeros(2, 3, device=D)
flat = grid.view(-1)
flat[5] = 8
out = grid
""",
    ".data of another shape (xla#3330)": """
p = torch.arange(8., device=D)
keep = p.view(2, 4)
p.data = keep[:, :3].reshape(6, 1) * 2
p.mul_(3)
out = p, keep
""",
    "strided columns (xla#514)": """
m = torch.ones(2, 6, device=D)
m[:, 1::3] = 9
out = m
""",
    "out= into a reshaped buffer (xla#1128)": """
src = torch.arange(6., device=D).view(3, 2)
buf = torch.zeros(4, device=D)
torch.index_select(src, 0, torch.tensor([2, 0], device=D), out=buf.view(2, 2))
out = buf
""",
    "resize_, then a copy from the host (xla#2881)": """
dst = torch.empty(0, dtype=torch.int64, device=D)
dst.resize_(3)
dst.copy_(torch.tensor([5, 6, 7]))
out = dst
""",
    "in place through a transpose (pytorch#111417)": """
x = torch.arange(6., device=D).view(3, 2)
y = x.t()
y.mul_(10)
out = y.stride(), y, x
""",
    "gradient of an in-place slice (xla#1718)": """
w = torch.full((3, 2), 0.5, device=D, requires_grad=True)
h = torch.ones(4, 2, device=D) @ w.t()
h[:, :2] = 0
h.sum().backward()
out = w.grad
""",
    "squeeze of a chunk (xla#7864)": """
x = torch.tensor([3., 4.], device=D)
p, q = x.chunk(2)
q.squeeze().add_(1)
out = p.squeeze(), q.squeeze(), x[1, None].squeeze()
""",
    "copy and deepcopy (xla#876)": """
t = torch.tensor([1., 2.], device=D)
s, d = copy.copy(t), copy.deepcopy(t)
d.add_(5)
s.add_(1)
out = t, d
""",
    "deepcopy of views that share": """
base = torch.arange(6., device=D)
a, b = copy.deepcopy([base, base[2:4]])
b.fill_(9)
out = base, a, b
""",
    "deepcopy of a module (pytorch#73197)": """
net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).to(D)
ema = copy.deepcopy(net)
torch.nn.init.constant_(net[0].weight, 1.0)
torch.nn.init.constant_(ema[0].weight, 2.0)
out = net[0].weight, ema[0].weight, ema[1].running_mean
""",
    "writes through many views of one base": """
base = torch.arange(24., device=D)
cube = base.view(2, 3, 4)
cube[1].t()[2] = -1
cube.permute(2, 0, 1)[0].mul_(2)
cube.diagonal(dim1=1, dim2=2).add_(100)
cube.select(2, 3).zero_()
out = base, cube.narrow(1, 1, 2)
""",
    "copies between overlapping windows": """
x = torch.arange(8, device=D)
x[1:].copy_(x[:-1].clone())
x[::2] = x[1::2]
out = x
""",
    "a view of another dtype": """
x = torch.tensor([1.0, -2.0], device=D)
bits = x.view(torch.int32)
bits[1] &= 0x7FFFFFFF
halves = x.view(torch.int16)
halves[1::2] += 128
out = x, bits, halves
""",
    "real and imaginary parts": """
z = torch.zeros(3, dtype=torch.complex64, device=D)
z.real.copy_(torch.arange(3.))
torch.view_as_real(z)[:, 1] = 5
z[1:].imag.neg_()
out = z, z.conj().imag
""",
    "set_ and storages": """
x = torch.arange(6., device=D)
y = torch.empty(0, device=D)
y.set_(x.untyped_storage(), 1, (2, 2), (2, 1))
y.add_(10)
z = torch.empty(0, device=D).set_(x)
z[0] = -1
w = torch.empty(0, device=D).set_(x.untyped_storage())
out = x, y, z, w
""",
    "resize_ keeps values and sharing": """
x = torch.arange(4., device=D)
tail = x[2:]
x.resize_(2)
x.resize_(2, 2)
x.resize_(6)[4:] = 0
tail.add_(10)
out = x, tail
""",
    "resize_ of a view": """
x = torch.arange(4., device=D)
y = x[2:]
y.resize_(4)[2:] = 7
y[0] = -1
out = x, y
""",
    "unfold reads overlapping windows": """
x = torch.arange(6., device=D)
w = x.unfold(0, 3, 1)
x[2] = 20
out = w, w.sum(1)
""",
    "unfold writes distinct windows": """
x = torch.zeros(6, device=D)
x.unfold(0, 2, 2)[:, 1] = 3
out = x
""",
    "expand reads the latest value": """
x = torch.zeros(3, 1, device=D)
wide = x.expand(3, 4)
x[1] = 2
out = wide, wide.contiguous()
""",
    "detach and .data share": """
w = torch.ones(3, device=D, requires_grad=True)
w.detach()[0] = 5
w.data[1] = 6
out = w
""",
    "in place on a leaf under no_grad": """
w = torch.ones(2, 2, device=D, requires_grad=True)
with torch.no_grad(): w[0].sub_(0.5)
(w * w).sum().backward()
out = w, w.grad
""",
    "empty and 0-d views": """
x = torch.arange(3., device=D)
x[3:].fill_(9)
x[1].fill_(7)
x.view(3, 1, 1)[2, 0].squeeze(0).add_(1)
out = x, x[3:], x[:0].view(0, 2)
""",
    "a shift of rows and then of columns (openxla/xla#49176)": """
x = torch.arange(8, device=D)
x[1:] = x[:-1].clone()
x[::2] = x[1::2]
x.view(4, 2)[:3] = x.view(4, 2)[1:].clone()
out = x
""",
    "set_ enlarges a storage": """
x = torch.ones(2, device=D)
y = x[1:]
x.set_(x.untyped_storage(), 1, (3,), (1,))
x[1:] = 5
y.add_(2)
out = x, y, x.untyped_storage().nbytes()
""",
    "set_ of an empty tensor keeps its strides": """
x = torch.arange(8., device=D)[::7][:0].set_()
out = x.stride(), x.shape
""",
    "a view of a dtype in which bytes are left over": """
x = torch.arange(7, dtype=torch.uint8, device=D)
x[:4].view(torch.float32).fill_(1)
x[:0].view(torch.float64).fill_(1)
out = x
""",
    "a fill of elements that share memory": """
x = torch.arange(3., device=D)
x.expand(2, 3)[:, 1:].fill_(7)
out = x
""",
    "a copy from the host to a view of nothing": """
x = torch.empty(0, device=D)
x.expand(2, 0).copy_(torch.empty(2, 0))
out = x.clone()
""",
    "integers beside 16-bit floats": """
x = torch.tensor([2., 3.], device=D).to(torch.bfloat16)
out = x + torch.tensor([257, 259], dtype=torch.int32, device=D), x
""",
    "versions of tensors in a list": """
x = torch.ones(3, device=D)
y = torch.zeros(2, device=D)
torch._foreach_add_([x, y], 1)
torch._foreach_copy_([x], [y[:1].expand(3)])
out = x, x._version, y._version
""",
    "swapping rows through temporaries": """
x = torch.arange(6., device=D).view(3, 2)
x[0], x[2] = x[2].clone(), x[0].clone()
x.flip(0)[0].zero_()
out = x
""",
}


def values(out):
    return [
        t.detach().cpu().tolist() if isinstance(t, torch.Tensor) else t for t in (out if isinstance(out, tuple) else (out,))
    ]


def run(program, device, read_after=None):
    names = {"torch": torch, "copy": copy, "D": device}
    for k, line in enumerate(program.strip().splitlines()):
        exec(line, names)
        if read_after == k:
            for value in list(names.values()):
                str(value) if isinstance(value, torch.Tensor) else None
    return values(names["out"])


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name, mode):
    torch.manual_seed(0)
    program = PROGRAMS[name]
    expected = run(program, "cpu")
    assert run(program, "tpu") == expected
    for k in range(len(program.strip().splitlines()) - 1):
        assert run(program, "tpu", read_after=k) == expected, f"read after line {k + 1}"


def put(x, values, device):
    return x.index_put_((torch.tensor([0, 1], device=device),), values)


def test_no_index_is_in_range_of_nothing(mode):
    for device in ("cpu", "tpu"):
        index = torch.tensor([0], device=device)
        for read in (lambda x: x[index], lambda x: x.index_select(0, index), lambda x: put(x, x.new_ones(1), x.device)):  # noqa: B023
            with pytest.raises(IndexError):
                read(torch.empty(0, device=device))


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda D: torch.arange(5, device=D).expand(3, -1)[:, 2:].add_(100), "more than one element of the written-to tensor"),
        (lambda D: torch.zeros(3, 1, device=D).add_(torch.ones(3, 4, device=D)), "doesn't match the broadcast shape"),
        (
            lambda D: torch.ones(1, device=D).expand(3).copy_(torch.arange(3.0)),
            "more than one element of the written-to tensor",
        ),
        (lambda D: torch.ones(2, 3, device=D).t().view(6), "view size is not compatible"),
        (lambda D: torch.ones(3, device=D).as_strided((4,), (1,)), "out of bounds"),
        (lambda D: torch.ones(3, device=D).view(torch.int64), "divisible"),
        (lambda D: torch.ones(3, device=D, requires_grad=True).add_(1), "leaf Variable that requires grad"),
        (lambda D: (x := torch.ones(3, device=D))[1:].copy_(x[:2]), "some elements of the input tensor and the written-to"),
        (lambda D: (x := torch.ones(3, device=D))[1:].add_(x[:2]), "some elements of the input tensor and the written-to"),
        (lambda D: put(x := torch.ones(3, device=D), x[1:], D), "some elements of the input tensor and the written-to"),
        (lambda D: put(torch.ones(3, device=D), torch.ones(3, device=D), D), r"shape mismatch: value tensor of shape \[3\]"),
        (lambda D: put(torch.ones(3, device=D), torch.ones(2, device=D).long(), D), "source and destination dtypes match"),
        (lambda D: torch.ones(3, device=D).bool().mul_(2), "result type Long can't be cast to the desired output type Bool"),
        (lambda D: torch.ones(3, device=D).long().mul_(0.5), "result type Float can't be cast to the desired output type Long"),
        (
            lambda D: torch.add(x := torch.ones(1, 3, device=D), torch.ones(2, 3, device=D), out=x),
            r"output with shape \[1, 3\] doesn't match the broadcast shape \[2, 3\]",
        ),
        (
            lambda D: torch.ones(3, device=D).index_add_(0, torch.tensor([0], device=D), torch.ones(1, 3, device=D)),
            "source tensor shape must match self tensor shape",
        ),
    ],
)
def test_writes_that_the_cpu_refuses_are_refused(write, message, mode):
    with pytest.raises(RuntimeError, match=message) as on_cpu:
        write("cpu")
    with pytest.raises(type(on_cpu.value), match=message):
        write("tpu")


def test_versions_catch_a_changed_saved_tensor(mode):
    w = torch.ones(2, device="tpu", requires_grad=True)
    y = w.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    x = torch.zeros(2, device="tpu")
    x[0] = 1
    assert x._version == 1
    assert x[:1]._version == 1


def test_memory_of_a_view_is_that_of_its_base(mode):
    before = torch.tpu.memory_allocated()
    base = torch.ones(1000, device="tpu")
    views = [base[k:] for k in range(100)]
    views[3].add_(1)
    torch.tpu.synchronize()
    assert torch.tpu.memory_allocated() - before == 4000
    del base
    views = views[-1:]
    assert torch.tpu.memory_allocated() - before == 4000
    del views
    assert torch.tpu.memory_allocated() == before


def test_a_checkpoint_keeps_views(mode):
    base = torch.arange(6.0, device="tpu")
    file = io.BytesIO()
    torch.save({"base": base, "view": base[2:4]}, file)
    loaded = torch.load(io.BytesIO(file.getvalue()))
    loaded["view"].fill_(9)
    assert loaded["base"].tolist() == [0, 1, 9, 9, 4, 5]
