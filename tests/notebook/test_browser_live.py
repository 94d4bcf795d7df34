"""A session in real front ends: the running line, the dashboard, and what the saved file shows when it is opened again."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter

from tests.notebook.front_ends import use_theme

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SETUP = """%load_ext torchtpu
import time, torch, torchtpu
x = torch.linspace(0, 1, 64).reshape(8, 8).to("tpu")"""
DASHBOARD = "%tpu dashboard"
WORK = """%%tpu_mode defer_and_fuse
y = x
for k in range(8):
    y = torch.sin(y) @ x * 0.25
y.sum().item()
time.sleep(2)"""
OTHER = "%%tpu_mode strict\n(x + 1).sum().item()"

PANEL = ".torchtpu-dashboard"  # the live widget
OUTPUT = ".jp-OutputArea-output"


def write(path: Path, *cells: str) -> None:
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells], metadata=kernel)
    nbformat.write(book, path)


def outputs(path: Path) -> list[list[dict]]:
    return [[o for o in c.outputs if o.output_type == "display_data"] for c in nbformat.read(path, as_version=4).cells]


class Console(list):
    """What the page's own code complained about, without what front ends say of themselves on an empty profile."""

    def __init__(self, page) -> None:
        page.on("pageerror", lambda error: self.append(str(error)))
        page.on("console", self._note)

    def _note(self, message) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.append(message.text)


@pytest.fixture(scope="module")
def ran(server, browser, tmp_path_factory) -> Iterator[tuple[Path, dict[str, object]]]:
    """A notebook that was run with the keyboard in JupyterLab and saved, and what was seen meanwhile."""
    address, root = server
    path = root / "session.ipynb"
    write(path, SETUP, DASHBOARD, WORK, OTHER)
    use_theme(root, "JupyterLab Light")
    page = browser.new_page(viewport={"width": 1280, "height": 1200})
    seen: dict[str, object] = {"console": Console(page)}
    page.goto(f"{address}/lab/tree/session.ipynb?reset")
    page.locator(".jp-Notebook .cm-content").first.click()
    page.wait_for_selector("[data-status=idle]", timeout=60_000)
    for _ in range(3):
        page.keyboard.press("Shift+Enter")
    running = page.get_by_text(re.compile(r"^running$"))
    running.first.wait_for(timeout=60_000)
    seen["busy"] = page.locator(".jp-InputPrompt", has_text="[*]").count()
    seen["line"] = running.first.locator("xpath=..").inner_text()
    page.locator(PANEL).wait_for(timeout=30_000)
    seen["panel"] = page.locator(PANEL).inner_text()
    page.screenshot(path=tmp_path_factory.mktemp("shots") / "live.png")
    page.keyboard.press("Shift+Enter")
    page.get_by_text("strict", exact=True).nth(1).wait_for(timeout=60_000)
    page.wait_for_function(f"!document.querySelector('{PANEL}')")
    seen["after"] = page.locator(OUTPUT).all_inner_texts()
    page.keyboard.press("Control+s")
    page.wait_for_function("!document.querySelector('.jp-mod-dirty')")
    for _ in range(100):
        if outputs(path)[3]:
            break
        page.wait_for_timeout(100)
    page.close()
    return path, seen


def test_UP_130_a_line_and_a_panel_are_seen_while_the_cell_is_busy(ran):
    seen = ran[1]
    assert seen["busy"] >= 1
    assert seen["line"].startswith("defer_and_fuse running ")
    assert "HBM" in seen["line"]
    assert seen["panel"].startswith("torchtpu session")
    assert "running: defer_and_fuse, " in seen["panel"]


def test_static_output_takes_their_place(ran):
    path, seen = ran
    assert not [text for text in seen["after"] if "running" in text]
    _, dashboard, work, other = outputs(path)[:4]
    assert [set(o["data"]) for o in (*dashboard, *work, *other)] == [{"text/html", "text/plain"}] * 3
    assert "2 cells," in dashboard[0]["data"]["text/plain"]
    assert work[0]["data"]["text/plain"].startswith("torchtpu defer_and_fuse: ")
    assert "widget" not in json.dumps(nbformat.read(path, as_version=4).metadata)


def test_nothing_of_ours_complains(ran):
    assert [text for text in ran[1]["console"] if "torchtpu" in text.lower() or "widget" in text.lower()] == []


@pytest.fixture(scope="module")
def copies(ran, server) -> Path:
    """The saved notebook as somebody else gets it: never trusted, and with no kernel behind it."""
    root = server[1]
    book = nbformat.read(ran[0], as_version=4)
    book.metadata["sent_by"] = "somebody"  # another content, which nobody has signed
    nbformat.write(book, root / "untrusted.ipynb")
    return root


@pytest.mark.parametrize(
    ("place", "name"),
    [("lab/tree", "session"), ("lab/tree", "untrusted"), ("notebooks", "untrusted")],
    ids=["JupyterLab", "JupyterLab, untrusted", "Notebook 7, untrusted"],
)
def test_UP_124_opened_again_it_shows_the_same(page, server, ran, copies, place, name):
    page.goto(f"{server[0]}/{place}/{name}.ipynb" + ("?reset" if place == "lab/tree" else ""))
    for data in (o["data"] for cell in outputs(ran[0]) for o in cell):
        headline = data["text/plain"].split(":")[1].split(",")[0].strip()  # "2 cells", "1 program"
        page.locator(OUTPUT, has_text=headline).first.wait_for(timeout=60_000)
    shown = "\n".join(page.locator(OUTPUT).all_inner_texts())
    assert "Error displaying widget" not in shown
    assert "model not found" not in shown
    assert page.locator(f"{OUTPUT} img").first.evaluate("image => image.naturalWidth") > 0


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_UP_125_the_page_that_nbconvert_writes_is_complete_without_scripts_or_network(browser, ran, theme, tmp_path):
    html, _ = HTMLExporter(theme="dark" if "Dark" in theme else "light").from_filename(str(ran[0]))
    (tmp_path / "page.html").write_text(html)
    context = browser.new_context(java_script_enabled=False, offline=True, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    visible = page.locator("body").inner_text()
    for text in ("torchtpu session", "2 cells", "1 program", "HBM peak", "Programs: 1"):
        assert text in visible, text
    page.get_by_text("Programs: ").first.click()
    assert page.get_by_role("cell", name="end of cell").or_(page.get_by_role("cell", name="item")).first.is_visible()
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    context.close()


def test_a_report_is_opened_with_the_keyboard(page, server, ran):
    page.goto(f"{server[0]}/lab/tree/session.ipynb?reset")
    summary = page.locator(f"{OUTPUT} summary", has_text="Programs:").first
    summary.wait_for(timeout=60_000)
    summary.focus()
    page.keyboard.press("Enter")
    assert summary.evaluate("s => s.parentElement.open")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"


def test_UP_130_notebook_7_shows_the_line_too(page, server, ran):
    page.goto(f"{server[0]}/notebooks/session.ipynb")
    work = page.locator(".jp-CodeCell").nth(2)
    work.locator(".cm-content").click()
    page.wait_for_selector("[data-status=idle]", timeout=60_000)
    page.keyboard.press("Shift+Enter")
    line = work.locator(OUTPUT, has_text="running")
    line.wait_for(timeout=60_000)
    assert line.inner_text().startswith("defer_and_fuse running ")
    work.locator(OUTPUT, has_text="HBM peak").wait_for(timeout=60_000)
    assert line.count() == 0
