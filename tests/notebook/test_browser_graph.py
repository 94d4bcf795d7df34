"""The graph of a cell in real front ends: live, in both themes, with the keyboard, and opened again by somebody else."""

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from tests.notebook.front_ends import use_theme
from tests.notebook.test_browser_live import Console, write

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SETUP = """%load_ext torchtpu
import torch, torchtpu
class Block(torch.nn.Module):
    def forward(self, y):
        for _ in range(10):
            y = torch.sin(y) @ y * 0.25
        return y
net = torch.nn.Sequential(*(Block() for _ in range(10))).to("tpu")
x = torch.linspace(0, 1, 64).reshape(8, 8).to("tpu")"""
GRAPH = """%%tpu_mode defer_and_fuse --graph
net(x).sum().item()"""
OPS = 301
FRAME = ".jp-OutputArea-output iframe"
PICTURE = ".jp-OutputArea-output img[alt*='301 ops']"


@pytest.fixture(scope="module", params=["JupyterLab Dark"])
def ran(server, browser, request, tmp_path_factory) -> Iterator[tuple[Path, dict[str, object]]]:
    """A notebook whose graph was opened with the keyboard in JupyterLab and saved, and what was seen meanwhile."""
    address, root = server
    path = root / f"graph {request.param}.ipynb"
    write(path, SETUP, GRAPH)
    use_theme(root, request.param)
    page = browser.new_page(viewport={"width": 1280, "height": 1200})
    seen: dict[str, object] = {"console": Console(page), "theme": request.param.split()[-1].lower()}
    page.goto(f"{address}/lab/tree/{path.name}?reset")
    page.locator(".jp-Notebook .cm-content").first.click()
    page.wait_for_selector("[data-status=idle]", timeout=60_000)
    for _ in range(2):
        page.keyboard.press("Shift+Enter")
    frame = page.frame_locator(FRAME)
    frame.locator("body[data-ready]").wait_for(timeout=60_000)
    seen["drawn theme"] = frame.locator("html").get_attribute("data-theme")
    seen["collapsed"] = frame.locator("#scene g[id]").count()
    frame.locator("#view").focus()
    page.keyboard.press("ArrowDown")
    seen["selected"] = frame.locator("#about").inner_text()
    page.keyboard.press("Enter")  # opens the module
    seen["opened"] = frame.locator("#trail").inner_text()
    frame.locator("#search").fill("sin")
    page.keyboard.press("Enter")
    seen["found"] = frame.locator("#about").inner_text()
    page.screenshot(path=tmp_path_factory.mktemp("shots") / "graph.png")
    page.keyboard.press("Escape")
    page.locator(".jp-Notebook .cm-content").first.click()
    page.keyboard.press("Control+s")
    page.wait_for_function("!document.querySelector('.jp-mod-dirty')")
    for _ in range(100):
        if nbformat.read(path, as_version=4).cells[1].outputs:
            break
        page.wait_for_timeout(100)
    page.close()
    return path, seen


def test_it_opens_collapsed_in_the_theme_of_the_notebook(ran):
    seen = ran[1]
    assert seen["drawn theme"] == seen["theme"]
    assert 1 <= seen["collapsed"] < OPS


def test_the_keyboard_opens_a_module_and_finds_an_op(ran):
    seen = ran[1]
    assert seen["selected"].startswith("0\nmodule\nSequential.0\nops\n30\n")
    assert seen["opened"].startswith("fused_301_ops#1") and seen["opened"].endswith(" 0")
    assert seen["found"].startswith("aten::sin\n")


def test_the_console_stays_empty(ran):
    assert ran[1]["console"] == []


@pytest.mark.parametrize("place", ["lab/tree", "notebooks"], ids=["JupyterLab", "Notebook 7"])
def test_somebody_who_does_not_trust_it_sees_the_picture(page, server, ran, place):
    address, root = server
    book = nbformat.read(ran[0], as_version=4)
    book.metadata["sent_by"] = "somebody"  # another content, which nobody has signed
    nbformat.write(book, root / "untrusted graph.ipynb")
    page.goto(f"{address}/{place}/untrusted graph.ipynb" + ("?reset" if place == "lab/tree" else ""))
    picture = page.locator(PICTURE)
    picture.wait_for(timeout=60_000)
    assert picture.evaluate("image => image.naturalWidth") > 100
    assert page.locator(FRAME).count() == 0
