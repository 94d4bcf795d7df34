"""What a browser shows of a report, in the themes that people use, and in a notebook that nobody trusted."""

from pathlib import Path

import nbformat
import pytest

from tests.notebook.front_ends import WIDTH, use_theme
from tests.test_report import busy_log, finished

pytestmark = pytest.mark.browser

THEMES = {"light": ("#ffffff", "rgba(0,0,0,0.87)"), "dark": ("#111111", "rgba(255,255,255,0.87)")}


@pytest.fixture(scope="module")
def report():
    return finished(busy_log(), finish=0.25)


def contrast(page, selector: str) -> float:
    """Return the contrast of an element's text with the page behind it, by WCAG's formula."""
    return page.evaluate(
        """selector => {
            const element = document.querySelector(selector);
            const parse = text => text.match(/[\\d.]+/g).map(Number);
            let back = [255, 255, 255], opacity = 1;
            const chain = [];
            for (let e = element; e; e = e.parentElement) chain.unshift(e);
            for (const e of chain) {
                const style = getComputedStyle(e), [r, g, b, a = 1] = parse(style.backgroundColor);
                back = back.map((c, i) => c * (1 - a) + [r, g, b][i] * a);
                opacity *= Number(style.opacity);
            }
            const [r, g, b, a = 1] = parse(getComputedStyle(element).color);
            const front = back.map((c, i) => c * (1 - a * opacity) + [r, g, b][i] * a * opacity);
            const luminance = rgb => rgb.map(c => c / 255).map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
                .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
            const [dark, light] = [luminance(front), luminance(back)].sort((x, y) => x - y);
            return (light + 0.05) / (dark + 0.05);
        }""",
        selector,
    )


@pytest.mark.parametrize("theme", THEMES)
def test_readable_in_light_and_dark(page, report, theme, tmp_path):
    back, front = THEMES[theme]
    style = f"background:{back};color:{front};font-family:sans-serif"
    page.set_content(f'<body style="{style}"><main id="report">{report.to_html()}</main></body>')
    for element in ("summary", "summary span", "b", "div div"):
        assert contrast(page, f"#report {element}") >= 4.5, element
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    page.screenshot(path=tmp_path / f"{theme}.png", full_page=True)
    for element in ("th", "td", "td summary"):
        assert contrast(page, f"#report {element}") >= 4.5, element
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH


def test_details_are_closed_until_opened(page, report):
    page.set_content(report.to_html())
    cell = page.get_by_role("cell", name="aten::kthvalue")
    assert not cell.is_visible()
    page.get_by_text("CPU fallbacks:").click()
    assert cell.is_visible()


def test_one_type_scale(page, report):
    page.set_content(report.to_html())
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    sizes = page.evaluate("[...new Set([...document.querySelectorAll('div *')].map(e => getComputedStyle(e).fontSize))].sort()")
    assert sizes == ["12px", "13px"]


@pytest.fixture(scope="module")
def lab(server, report) -> tuple[str, Path]:
    """JupyterLab, on a folder with a notebook that holds a report and that no one on this machine has run."""
    address, root = server
    data = {"text/html": report.to_html(), "text/plain": report.to_text()}
    output = nbformat.v4.new_output("display_data", data=data)
    cell = nbformat.v4.new_code_cell("%%tpu_mode defer_and_fuse", execution_count=1, outputs=[output])
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=kernel), root / "report.ipynb")
    return address, root


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_an_untrusted_notebook_in_jupyterlab(page, lab, report, theme, tmp_path):
    address, root = lab
    use_theme(root, theme)
    page.goto(f"{address}/lab/tree/report.ipynb?reset")
    output = page.locator(".jp-OutputArea-output[data-mime-type='text/html']")
    output.wait_for(timeout=60_000)
    page.wait_for_function(f"document.body.dataset.jpThemeName === '{theme}'")
    text = output.inner_text()
    assert text.startswith("defer_and_fuse")
    assert f"{report.runs} runs" in text
    bar = output.locator("img")
    assert bar.evaluate("image => image.naturalWidth") > 0
    assert bar.bounding_box()["height"] == 8
    assert bar.bounding_box()["width"] > 600
    outer = output.bounding_box()
    for phrase in output.locator("span").all():
        box = phrase.bounding_box()
        assert box is None or box["x"] + box["width"] <= outer["x"] + outer["width"], phrase.inner_text()
    page.evaluate("document.querySelectorAll('.jp-OutputArea details').forEach(d => { d.open = !d.closest('td') })")
    page.screenshot(path=tmp_path / "lab.png")
    for table in output.locator("table").all():
        assert table.evaluate("table => table.scrollWidth <= table.parentElement.clientWidth")
    for element in ("summary", "summary span", "th", "td"):
        assert contrast(page, f".jp-OutputArea-output {element}") >= 4.5, element
    assert output.locator("td").first.evaluate("cell => getComputedStyle(cell).textAlign") == "left"
    assert output.locator("tbody tr").nth(1).evaluate("row => getComputedStyle(row).backgroundColor") == "rgba(0, 0, 0, 0)"
