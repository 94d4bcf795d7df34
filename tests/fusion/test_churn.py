"""defer_and_fuse where shapes change on every pass: what is compiled, and that it is never more than strict compiles."""

import itertools

import pytest
import torch

import torchtpu
from tests.models import Decoder
from torchtpu import config, modes

_widths = itertools.count(20, 4)


@pytest.fixture
def decoder():
    """A decoder whose programs no other test has compiled."""
    torch.manual_seed(0)
    return Decoder(width=next(_widths), layers=2).to("tpu")


@pytest.fixture
def deferred():
    with modes.scope("defer_and_fuse"):
        yield


def prompt(length: int = 5) -> torch.Tensor:
    return torch.arange(length, device="tpu")[None]


def compiles(mode: str, width: int, new_tokens: int) -> tuple[list[int], int]:
    torch.manual_seed(0)
    model = Decoder(width=width, layers=2).to("tpu")
    with modes.scope(mode), torchtpu.watch() as report:
        tokens = model.generate(prompt(), new_tokens)
    return tokens, len(report.compile_events)


def test_a_growing_cache_compiles_no_more_than_in_strict():
    width = next(_widths)
    fused, in_fused = compiles("defer_and_fuse", width, 6)
    strict, in_strict = compiles("strict", width, 6)
    assert fused == strict
    assert in_fused <= in_strict + config.churn_limit


def test_what_does_not_grow_is_compiled_once(decoder, deferred):
    decoder.generate(prompt(), config.churn_limit + 2)
    with torchtpu.watch() as report:
        decoder.generate(prompt(), config.churn_limit + 6)
    fused = [c.program for c in report.compile_events if c.program.startswith("fused_")]
    assert len(fused) == 4, "one program per new length, which the layers share"
    assert {c.kind for c in report.compile_events} == {"shape"}


def test_a_second_pass_over_the_same_lengths_compiles_nothing(decoder, deferred):
    first = decoder.generate(prompt(), 10)
    with torchtpu.watch() as report:
        assert decoder.generate(prompt(), 10) == first
    assert report.compile_events == ()


def test_pieces_are_fewer_than_ops(decoder, deferred):
    with torchtpu.watch() as report:
        decoder.generate(prompt(), 10)
    last = report.flushes[-1]
    assert 1 < last.pieces < last.ops / 4


def test_the_report_says_what_churned_and_what_was_done(decoder, deferred):
    with torchtpu.watch() as report:
        decoder.generate(prompt(), 12)
    (storm,) = report.storms
    assert storm.kind == "shape"
    assert "dim 2: 14 -> 15" in storm.detail
    assert storm.detail.endswith("in pieces, since such graphs did not come back")
    assert "a key-value cache: take one of fixed size (static)" in storm.remedy


def test_a_region_without_anything_known_is_cut_where_layers_share_programs(deferred):
    layers = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(24, 24), torch.nn.GELU()) for _ in range(6)]).to("tpu")

    def work(rows: int) -> torch.Tensor:
        with torch.no_grad():
            return layers(torch.ones(rows, 24, device="tpu")).cpu()

    expected = [work(rows) for rows in range(40, 40 + config.churn_limit)]
    with torchtpu.watch() as report:
        result = work(60)
    torch.testing.assert_close(result[:40], expected[0])
    assert report.flushes[0].pieces == 6
    assert report.compiles <= 3


def test_graphs_that_come_back_are_compiled_whole_again(deferred):
    def work(n: int) -> torchtpu.Report:
        with torchtpu.watch() as report:
            x = torch.ones(n, 8, device="tpu")
            (x @ x.T @ x).sum().item()
        return report

    lengths = [300 + n for n in range(config.churn_limit)]
    assert [work(n).flushes[0].pieces for n in lengths] == [1] * config.churn_limit
    assert work(400).flushes[0].pieces == 2
    assert work(lengths[0]).compile_events == ()
    assert work(500).flushes[0].pieces == 1


def test_a_graph_that_comes_twice_in_a_row_is_compiled_whole(deferred):
    weight = torch.ones(8, 8, device="tpu")

    def work(n: int) -> list[int]:
        with torchtpu.watch() as report:
            x = (weight @ weight).tanh().cos() @ weight
            torch.cat([x, torch.ones(n, 8, device="tpu")]).sum().item()
        return [report.flushes[0].pieces, len(report.compile_events)]

    work(2)
    assert work(3)[0] == 2, "most ops are as before"
    assert work(3) == [1, 1]
    assert work(3) == [1, 0]
