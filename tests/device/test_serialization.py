"""Checkpoints, pickles and copies keep values, sharing and devices."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import torchtpu  # noqa: F401


def saved(value, **options):
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def load(data, **options):
    return torch.load(io.BytesIO(data), **options)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_tensors_come_back_on_the_device(zipped, mode):
    base = torch.arange(6.0, device="tpu")
    value = {"base": base, "view": base[2:4].t(), "half": base.bfloat16(), "empty": torch.empty(0, 3, device="tpu")}
    back = load(saved(value, _use_new_zipfile_serialization=zipped))
    assert all(t.is_tpu for t in back.values())
    assert back["half"].dtype == torch.bfloat16
    assert back["empty"].shape == (0, 3)
    back["view"].fill_(9)
    assert back["base"].tolist() == [0, 1, 9, 9, 4, 5]
    assert base.tolist() == [0, 1, 2, 3, 4, 5]


def test_map_location_both_ways():
    there = saved({"t": torch.arange(3.0, device="tpu")})
    for location in ("cpu", torch.device("cpu"), {"tpu:0": "cpu"}, lambda storage, _: storage.cpu()):
        assert load(there, map_location=location)["t"].device.type == "cpu"
    here = saved({"t": torch.arange(3.0)})
    tpu = torch.device("tpu")
    for location in ("tpu", "tpu:0", tpu, {"cpu": "tpu"}, lambda storage, _: storage.to(device=tpu)):
        t = load(here, map_location=location)["t"]
        assert t.is_tpu
        assert t.tolist() == [0, 1, 2]
    with pytest.raises(RuntimeError, match=r"device 1 but torch\.tpu\.device_count"):
        load(here, map_location="tpu:1")


def test_memory_map(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"t": torch.arange(3.0, device="tpu")}, path)
    assert torch.load(path, mmap=True)["t"].tolist() == [0, 1, 2]
    assert torch.load(path, mmap=True, map_location="cpu")["t"].tolist() == [0, 1, 2]


def test_a_checkpoint_loads_without_torchtpu(script, tmp_path):
    path = tmp_path / "checkpoint.pt"
    net = nn.Linear(2, 1).to("tpu")
    nn.init.constant_(net.weight, 7.0)
    torch.save(net.state_dict(), path)
    done = script(f"""
import sys, torch
print(torch.load({str(path)!r}, map_location="cpu", weights_only=True)["weight"], "torchtpu" in sys.modules)
""")
    assert done.stdout == "tensor([[7., 7.]]) False\n", done.stderr


def test_pickle():
    t = torch.arange(3.0, device="tpu")
    parameter = nn.Parameter(t)
    model = nn.Linear(2, 2).tpu()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    back, back_parameter, back_model, back_optimizer = pickle.loads(pickle.dumps([t, parameter, model, optimizer]))
    assert back.is_tpu
    assert back.tolist() == [0, 1, 2]
    assert isinstance(back_parameter, nn.Parameter)
    assert back_parameter.requires_grad
    assert back_model.weight.tolist() == model.weight.tolist()
    assert back_optimizer.param_groups[0]["params"][0].is_tpu


def test_deepcopy_keeps_sharing_and_gradients(mode):
    base = torch.arange(4.0, device="tpu")
    a, b = copy.deepcopy([base, base[1:3]])
    b.fill_(9)
    assert a.tolist() == [0, 9, 9, 3]
    w = torch.ones(2, device="tpu", requires_grad=True)
    w.grad = torch.full((2,), 3.0, device="tpu")
    again = copy.deepcopy(w)
    assert again.grad.tolist() == [3, 3]
    assert type(copy.deepcopy(nn.Parameter(w))) is nn.Parameter
    assert again.data_ptr() != w.data_ptr()
    with pytest.raises(RuntimeError, match="deepcopy protocol"):
        copy.deepcopy(w * 2)


def tied():
    net = nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 4, bias=False))
    net[1].weight = net[0].weight
    return net


def test_tied_weights_stay_tied(mode):
    net = tied().to("tpu")
    assert net[1].weight is net[0].weight
    twin = copy.deepcopy(net)
    assert twin[1].weight is twin[0].weight
    state = load(saved(net.state_dict()))
    assert state["0.weight"].data_ptr() == state["1.weight"].data_ptr()
    other = tied().to("tpu")
    other.load_state_dict(state)
    with torch.no_grad():
        other[0].weight.fill_(2)
    assert other[1].weight.tolist() == [[2, 2]] * 4


def test_state_dicts_cross_devices():
    here, there = nn.Linear(2, 2), nn.Linear(2, 2).to("tpu")
    there.load_state_dict(here.state_dict())
    assert there.weight.is_tpu
    assert there.weight.tolist() == here.weight.tolist()
    with torch.no_grad():
        there.weight.mul_(2)
    here.load_state_dict(there.state_dict())
    assert here.weight.tolist() == there.weight.tolist()
    meta = nn.Linear(2, 2, device="meta").to_empty(device="tpu")
    meta.load_state_dict(there.state_dict(), assign=True)
    assert meta.weight.tolist() == there.weight.tolist()


def make():
    torch.manual_seed(0)
    net = nn.Linear(2, 1).to("tpu")
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    return net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def train(net, optimizer, scheduler, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(1, 2, device="tpu")).pow(2).sum().backward()
        optimizer.step()
        scheduler.step()


def test_training_goes_on_from_a_checkpoint(mode):
    straight = make()
    train(*straight, 5)
    first = make()
    train(*first, 3)
    states = load(saved([part.state_dict() for part in first]), weights_only=True)
    second = make()
    for part, state in zip(second, states, strict=True):
        part.load_state_dict(state)
    train(*second, 2)
    assert second[0].weight.tolist() == straight[0].weight.tolist()
    assert second[2].get_last_lr() == straight[2].get_last_lr()
