"""The page of a profile in a browser, from its file: without network or scripts, and with Perfetto; and in a notebook."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from tests.notebook.front_ends import use_theme
from tests.notebook.test_browser import contrast
from tests.notebook.test_browser_live import Console
from tests.profiler import made
from torchtpu.profiler import Profile

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PERFETTO = "https://ui.perfetto.dev/"
SERVED = "http://notebook.test/run.html"
# As Perfetto does it: it answers PING once it listens, and then takes a trace.
LISTENER = """<script>addEventListener("message", (event) => {
  if (event.data === "PING") event.source.postMessage("PONG", "*");
  else { document.title = event.data.perfetto.title; window.trace = [...new Uint8Array(event.data.perfetto.buffer)]; }
})</script>"""


@pytest.fixture(scope="module")
def profile() -> Profile:
    return made.profile()


@pytest.fixture(scope="module")
def file(profile, tmp_path_factory) -> Path:
    return profile.save(tmp_path_factory.mktemp("page") / "run.html")


class Opened:
    """The page in a browser of its own; `asked`: addresses outside of it that it asked for."""

    def __init__(self, browser, file: Path, served: bool = False, **options) -> None:
        self.context = browser.new_context(accept_downloads=True, **{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = self.context.new_page()
        self.asked: list[str] = []
        self.context.on("request", self._note)
        self.context.route(SERVED, lambda route: route.fulfill(path=file))
        self.console = Console(self.page)
        self.page.goto(SERVED if served else file.as_uri())

    def _note(self, request) -> None:
        if not request.url.startswith(("file:", "data:", SERVED)):
            self.asked.append(request.url)

    def column(self, title: str, column: int) -> list[str]:
        """The texts of a column of the table under a title."""
        rows = self.page.locator("section", has=self.page.locator("summary", has_text=title)).locator("tbody tr")
        return [row.locator("td").nth(column).inner_text() for row in rows.all()]


@pytest.fixture
def open_page(browser, file) -> Iterator:
    opened: list[Opened] = []

    def open_page(**options) -> Opened:
        opened.append(Opened(browser, file, **options))
        return opened[-1]

    yield open_page
    for one in opened:
        one.context.close()


@pytest.mark.parametrize(("scheme", "paper"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 24, 29)")])
def test_offline_it_shows_everything_and_asks_for_nothing(open_page, tmp_path, scheme, paper):
    opened = open_page(offline=True, color_scheme=scheme)
    page = opened.page
    assert page.locator("section").count() == 12
    assert opened.column("Ops by time", 0) == ["mm", "relu +1", "add.Tensor", "threshold_backward"]
    pictures = page.locator("img")
    assert [picture.evaluate("image => image.naturalWidth > 0") for picture in pictures.all()] == [True] * 4
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
    for element in ("b", ".trace", "nav a", "summary", "summary span", "th", "td", "td span"):
        assert contrast(page, element) >= 4.5, element
    page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)
    assert opened.console == []
    assert opened.asked == []


def test_without_scripts_the_numbers_and_the_trace_are_there(open_page, profile, tmp_path):
    opened = open_page(java_script_enabled=False)
    assert opened.page.locator("section").last.inner_text().startswith("Roofline: what bounds the kernels")
    assert not opened.page.locator("#perfetto").is_visible()
    with opened.page.expect_download() as download:
        opened.page.click("#trace")
    download.value.save_as(tmp_path / "trace.json.gz")
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()).decode() == profile.to_perfetto()


def test_the_trace_can_be_downloaded_offline(open_page, profile, tmp_path):
    opened = open_page(offline=True)
    with opened.page.expect_download() as download:
        opened.page.click("#trace")
    assert download.value.suggested_filename == f"{profile.run}.trace.json.gz"
    download.value.save_as(tmp_path / "trace.json.gz")
    assert json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["otherData"]["run"] == profile.run


def test_offline_the_button_says_what_to_do_instead(open_page):
    opened = open_page(offline=True)
    opened.page.click("#perfetto")
    said = opened.page.locator("#said").inner_text()
    assert said.startswith("There is no network. Download the trace: chrome://tracing opens it offline")
    assert opened.context.pages == [opened.page]
    assert opened.console == []


def test_from_a_file_the_button_downloads_the_trace_and_opens_perfetto(open_page, profile):
    """Perfetto asks whether an origin is to be trusted, and a file has none: nothing can be handed over."""
    opened = open_page()
    opened.context.route(f"{PERFETTO}**", lambda route: route.fulfill(body="", content_type="text/html"))
    with opened.context.expect_page() as other, opened.page.expect_download() as download:
        opened.page.click("#perfetto")
    other.value.wait_for_url(PERFETTO)
    name = f"{profile.run}.trace.json.gz"
    assert download.value.suggested_filename == name
    assert opened.page.locator("#said").inner_text() == f"Downloaded {name}: drop it on the page of Perfetto that has opened."
    assert opened.console == []


def test_perfetto_gets_the_trace_once_it_listens(open_page, profile):
    opened = open_page(served=True)
    opened.context.route(f"{PERFETTO}**", lambda route: route.fulfill(body=LISTENER, content_type="text/html"))
    for _ in range(2):  # a second time too: the page keeps its own copy
        with opened.context.expect_page() as other:
            opened.page.click("#perfetto")
        other.value.wait_for_function("window.trace")
        trace = bytes(other.value.evaluate("window.trace"))
        assert gzip.decompress(trace).decode() == profile.to_perfetto()
        assert other.value.title() == f"torchtpu profile {profile.run}"
        opened.page.get_by_text("Handed to Perfetto.").wait_for()
        other.value.close()
    assert set(opened.asked) == {PERFETTO}
    assert opened.console == []


def test_if_perfetto_does_not_answer_nothing_is_left_open(open_page):
    opened = open_page(served=True)
    opened.context.route(f"{PERFETTO}**", lambda route: route.abort())
    opened.page.clock.install()
    with opened.context.expect_page():
        opened.page.click("#perfetto")
    opened.page.clock.run_for(21_000)
    opened.page.get_by_text("Perfetto did not answer. Download the trace").wait_for()
    assert opened.context.pages == [opened.page]
    assert opened.console == []


def test_titles_sort_their_tables(open_page):
    opened = open_page()
    table = opened.page.locator("section", has=opened.page.locator("summary", has_text="Device idle"))
    title = table.locator("th", has_text="time")
    title.click()
    assert opened.column("Device idle", 3) == ["1 s", "200 ms", "150 ms", "50 ms"]
    title.press("Enter")
    assert opened.column("Device idle", 3) == ["50 ms", "150 ms", "200 ms", "1 s"]
    assert title.get_attribute("aria-sort") == "ascending"
    table.locator("th").first.click()
    assert opened.column("Device idle", 0) == ["compile", "dispatch", "Python in load_batch", "wait"]


@pytest.mark.parametrize("width", [480, 1280])
def test_it_is_never_wider_than_the_window(open_page, width):
    opened = open_page(viewport={"width": width, "height": 900})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_an_untrusted_notebook_keeps_it(page, server, profile, tmp_path, theme):
    address, root = server
    output = nbformat.v4.new_output("display_data", {"text/html": profile.to_html(), "text/plain": profile.to_text()})
    cell = nbformat.v4.new_code_cell("%%tpu_profile\ntrain()", outputs=[output])
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=kernel), root / "profile.ipynb")
    use_theme(root, theme)
    page.set_viewport_size({"width": 1280, "height": 1600})
    page.goto(f"{address}/lab/tree/profile.ipynb?reset")
    shown = page.locator(".jp-OutputArea-output")
    shown.get_by_text("10 steps, median 100 ms").wait_for(timeout=60_000)
    assert shown.locator("details[open]").count() >= 3
    assert shown.locator("img").first.evaluate("image => image.naturalWidth") > 0
    assert shown.locator("tbody tr", has_text="dispatch").first.is_visible()
    page.screenshot(path=tmp_path / f"{theme}.png")
    summary = shown.locator("summary", has_text="Roofline")
    summary.click()
    assert shown.locator("img[alt^='Roofline of 4 kernels']").is_visible()
