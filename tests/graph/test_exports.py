"""The forms in which a graph is written: each is what it says, whatever the names in it."""

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.graph.conftest import made_up, watched
from torchtpu.graph import ProgramGraph
from torchtpu.graph.model import SUFFIXES
from torchtpu.graph.to_html import BUDGET, fragment, page
from torchtpu.lines import Line
from torchtpu.report import Report

HOSTILE = '"]; <script>alert(1)</script>\\" --> x #quot; \n`${}`'
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def report() -> Report:
    net = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2)).to("tpu")
    x = torch.rand(4, 8, device="tpu")
    return watched(lambda: net(x).sum().backward())


@pytest.fixture
def graph(report) -> ProgramGraph:
    return report.graph()


@pytest.fixture
def hostile() -> ProgramGraph:
    made = made_up([[], [0], [1], [0, 2]], [f"{HOSTILE}/a"] * 2 + ["Net", f"Net/{HOSTILE}"], [[0, 1], [2], [3]])
    line = Line(HOSTILE, 1, f"{HOSTILE}:1", HOSTILE, "f")
    return replace(made, name=HOSTILE, ops=tuple(replace(op, line=line) for op in made.ops))


def tokens_of_dot(text: str) -> list[str]:
    """Split DOT into its tokens; anything that is none fails."""
    pattern = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[\w.]+|->|[{}\[\];=,])', re.DOTALL)
    tokens, at = [], 0
    while at < len(text.rstrip()):
        match = pattern.match(text, at)
        assert match is not None, text[at : at + 40]
        tokens.append(match[1])
        at = match.end()
    return tokens


def check_dot(text: str, ops: int, edges: int) -> None:
    tokens = tokens_of_dot(text)
    assert tokens[0] == "digraph"
    depth = 0
    for token in tokens:
        depth += (token == "{") - (token == "}")
        assert depth >= 0
    assert depth == 0 and tokens[-1] == "}"
    assert tokens.count("->") == edges
    assert len({t for t in tokens if re.fullmatch(r"n\d+", t)}) == ops


def check_mermaid(text: str) -> None:
    first, *lines = text.splitlines()
    assert first == "flowchart TD"
    label = r'"[\w #;.,:()\[\]·-]*"'
    kinds = rf"n\d+\[{label}\]|g[\d_]+\[\[{label}\]\]|subgraph g[\d_]+\[{label}\]|end|[ng][\d_]+ (-- \d+ )?--> [ng][\d_]+"
    for line in lines:
        assert re.fullmatch(kinds, line.strip()), line
    assert sum("subgraph" in line for line in lines) == sum(line.strip() == "end" for line in lines)


@pytest.mark.parametrize("kind", ["graph", "hostile"])
def test_svg_is_xml_with_a_text_for_each_tile(kind, request):
    graph = request.getfixturevalue(kind)
    root = ElementTree.fromstring(graph.to_svg())
    assert root.tag == f"{SVG}svg"
    texts = ["".join(t.itertext()) for t in root.iter(f"{SVG}text")]
    assert len(texts) >= 2 * len(graph.ops)
    assert {e.tag.removeprefix(SVG) for e in root.iter()} <= {"svg", "title", "style", "rect", "path", "g", "text"}


@pytest.mark.parametrize("kind", ["graph", "hostile"])
def test_dot_and_mermaid_are_well_formed(kind, request):
    graph = request.getfixturevalue(kind)
    check_dot(graph.to_dot(), len(graph.ops), len(graph.edges))
    check_mermaid(graph.to_mermaid())


def test_a_large_mermaid_is_folded():
    text = made_up([[k - 1] if k else [] for k in range(5000)]).to_mermaid()
    check_mermaid(text)
    assert len(re.findall(r"\[\[", text)) > 10
    assert text.count("\n") < 300


def test_json_comes_back(graph, hostile):
    for one in (graph, hostile):
        again = ProgramGraph.from_json(one.to_json())
        assert again == one
        assert again.to_svg() == one.to_svg()
    assert ProgramGraph.from_json(graph.to_json()).to_python() == graph.to_python()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[]", "this JSON is not a torchtpu.graph"),
        ('{"schema": "torchtpu.report", "version": 2}', "this JSON is not a torchtpu.graph"),
        ('{"schema": "torchtpu.graph", "version": 0}', "this graph has version 0 of the schema; this torchtpu reads 1"),
        ('{"schema": "torchtpu.graph", "version": 1}', "this JSON is not a complete torchtpu.graph"),
    ],
)
def test_other_json_is_refused(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        ProgramGraph.from_json(text)


def test_a_saved_report_is_drawn_again(report):
    again = Report.from_json(report.to_json())
    assert again == report
    assert again.graph() == report.graph()
    assert again.graph().to_svg() == report.graph().to_svg()
    with pytest.raises(ValueError, match=r"fused_.* was read from a file, which does not hold its hlo"):
        again.graph().save("x.hlo")


def test_save_by_suffix(graph, tmp_path):
    for suffix in SUFFIXES:
        path = graph.save(tmp_path / f"graph{suffix}")
        assert path.read_text(encoding="utf-8")
    assert "stablehlo.dot_general" in (tmp_path / "graph.stablehlo").read_text()
    assert (tmp_path / "graph.hlo").read_text().startswith("HloModule")
    assert (tmp_path / "graph.html").read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(ValueError, match=r"cannot save a graph as 'graph.png': the name must end in \.svg, "):
        graph.save("graph.png")


def test_which_program(report):
    assert report.graph(0) == report.graph(report.programs[0].name)
    assert report.graph(-1) == report.graph(len(report.programs) - 1)
    with pytest.raises(ValueError, match="this report has 1 programs, there is none at position 5"):
        report.graph(5)
    with pytest.raises(ValueError, match="this report has no program 'fusd_9_ops'"):
        report.graph("fusd_9_ops")
    with pytest.raises(ValueError, match="this report has no programs"):
        watched(lambda: None).graph()


def test_each_op_is_a_program_of_its_own_in_strict_and_debug_mode():
    net, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).to("tpu"), torch.rand(4, 8, device="tpu")
    graph = watched(lambda: net(x).sum().backward(), "strict").graph()
    names = [op.op for op in graph.ops]
    assert names[:3] == ["aten::addmm", "aten::tanh", "aten::sum"]
    assert (0, 1) in {(e.source, e.target) for e in graph.edges}
    assert (names.index("aten::tanh"), names.index("aten::tanh_backward")) in {(e.source, e.target) for e in graph.edges}
    assert graph.weighed == "of an op's results"
    assert graph.seconds == ()


def test_debug_mode_colours_by_measured_time():
    import torchtpu
    from torchtpu import modes

    x = torch.rand(4, 8, device="tpu")
    with modes.scope("debug"), torchtpu.watch(trace=True) as report:
        (x + 1).tanh()
    graph = report.graph()
    assert graph.seconds == tuple(t.seconds for t in report.trace)
    assert len(graph.seconds) == 2
    assert graph.weights == graph.seconds
    assert "to launch an op and wait for it, measured" in graph.to_svg()
    assert ProgramGraph.from_json(graph.to_json()).seconds == graph.seconds


def test_text_is_python_or_a_list_of_the_ops(graph, hostile):
    assert "aten.addmm.default(" in str(graph)
    lines = str(hostile).splitlines()
    assert len(str(made_up([[]] * 500)).splitlines()) <= 121
    assert lines[0].startswith("<torchtpu graph: ")


def test_a_fragment_is_a_picture_below_a_page(graph, hostile):
    for one in (graph, hostile):
        html = fragment(one)
        assert html.index("<img ") < html.index("<iframe ")
        outside = re.sub(r"srcdoc='[^']*'", "", html)
        assert "<script" not in outside
        assert "alert(1)" not in re.sub(r"&lt;script&gt;alert\(1\)", "", outside)


def test_no_name_becomes_markup_or_script(hostile):
    for text in (hostile.to_svg(), page(hostile)):
        assert "<script>alert(1)" not in text
    scripts = re.findall(r"<script[^>]*>", page(hostile))
    assert scripts == ['<script type="application/octet-stream" id="graph">', "<script>"]
    assert "default-src 'none'" in page(hostile)


@pytest.mark.parametrize("ops", [200, 5000])
def test_a_fragment_stays_small(ops):
    modules = [f"Net/blocks.{k // 50}/part{k % 50 // 10}" for k in range(ops)]
    inputs = [[k - 1, *([k - 7] if k > 7 else [])] if k else [] for k in range(ops)]
    html = fragment(made_up(inputs, modules, [[k, k + 1] for k in range(0, ops, 2)]))
    assert len(html) <= BUDGET
    assert json.dumps(html)
