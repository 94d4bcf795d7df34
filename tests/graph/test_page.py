"""The page of a graph, in a browser: mouse, keyboard, search, both themes, many nodes."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from tests.graph.conftest import made_up
from torchtpu.graph.scene import LIMIT
from torchtpu.graph.to_html import fragment, page as page_of

pytestmark = pytest.mark.browser

CHAIN = made_up(
    [[], [0], [1], [1], [2, 3], [4]],
    ["Net/first", "Net/first", "Net/second", "Net/second", "Net", ""],
    [[0, 1], [2], [3], [4], [5]],
)
LARGE = made_up(
    [[k - 1, *([k - 9] if k > 9 else [])] if k else [] for k in range(5000)],
    [f"Net/blocks.{k // 50}/{'attention' if k % 50 < 20 else 'mlp'}" for k in range(5000)],
)


@pytest.fixture
def page(browser) -> Iterator:
    """A page of 1280 by 800 pixels, on whose console nothing may appear."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    said = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page
    page.close()
    assert said == []


@cache
def html_of(graph):
    return page_of(graph)


def show(page, graph):
    page.set_content(html_of(graph))
    page.wait_for_selector("body[data-ready]")


def node(page, key):
    return page.locator(f'#scene g[id="{key}"]')


def classes(page, key):
    return set((node(page, key).get_attribute("class") or "").split())


def about(page):
    return page.locator("#about").inner_text()


def test_hover_tells_and_click_keeps(page):
    show(page, CHAIN)
    assert "6 ops" in about(page)
    node(page, "n2").hover()
    assert "Net.second" in about(page)
    page.mouse.move(5, 5)
    assert "6 ops" in about(page)
    node(page, "n2").click()
    page.mouse.move(5, 5)
    assert "aten::add.Tensor" in about(page)
    assert "fusion.1 (loop fusion)" in about(page)
    assert "on" in classes(page, "n2")
    assert {key for key in ("n0", "n1", "n3", "n4", "n5") if "near" in classes(page, key)} == {"n1", "n4"}
    assert page.locator("#scene .w.hot").count() >= 2


def test_keys_follow_the_tensors(page):
    show(page, CHAIN)
    page.locator("#view").focus()
    for key, at in (("ArrowDown", "n0"), ("ArrowDown", "n1"), ("ArrowRight", None), ("ArrowUp", None)):
        page.keyboard.press(key)
        if at is not None:
            assert "on" in classes(page, at)
    assert page.locator("#scene g.on").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("#scene g.on").count() == 0


def test_zoom_and_fit(page):
    show(page, CHAIN)
    width = node(page, "n0").bounding_box()["width"]
    page.locator("#view").focus()
    page.keyboard.press("+")
    assert node(page, "n0").bounding_box()["width"] == pytest.approx(1.25 * width, rel=0.02)
    page.keyboard.press("0")
    assert node(page, "n0").bounding_box()["width"] == pytest.approx(width, rel=0.02)
    before = node(page, "n0").bounding_box()["y"]
    page.mouse.move(400, 400)
    page.mouse.wheel(0, 100)
    page.wait_for_function("y => document.getElementById('n0').getBoundingClientRect().y < y - 90", arg=before)
    page.get_by_role("button", name="Zoom out").click()
    assert node(page, "n0").bounding_box()["width"] < width
    page.get_by_role("button", name="Fit").click()
    page.mouse.move(400, 400)
    page.mouse.down()
    page.mouse.move(450, 430, steps=4)
    page.mouse.up()
    assert page.locator("#scene g.on").count() == 0  # a drag is no click


def test_search_lists_marks_and_goes(page):
    show(page, CHAIN)
    page.keyboard.press("/")
    page.keyboard.type("net.second add")
    assert "2 found" in about(page)
    assert page.locator("#scene g.found").count() == 2
    page.keyboard.press("Enter")
    assert "on" in classes(page, "n2")
    page.locator("#search").fill("nothing like it")
    assert "0 found" in about(page)
    page.keyboard.press("Escape")
    assert page.locator("#scene g.found").count() == 0


def test_a_large_program_opens_part_by_part(page):
    show(page, LARGE)
    assert 10 < page.locator("#scene g[id]").count() <= LIMIT
    folded = page.locator('#scene g[id^="g"]').first
    title = folded.locator("text").first.text_content()
    folded.dblclick()
    assert page.locator("#trail button").count() == 2
    assert title.removesuffix("\u2026") in page.locator("#trail button").last.inner_text()
    assert page.locator("#scene g[id]").count() <= LIMIT
    page.locator("#view").focus()
    page.keyboard.press("Backspace")
    assert page.locator("#trail button").count() == 1
    page.keyboard.press("Enter")  # the part that was left is selected
    assert page.locator("#trail button").count() == 2
    page.locator("#search").fill("aten::add blocks.73 mlp")
    page.keyboard.press("Enter")
    assert page.locator("#scene g.on").count() == 1
    assert "Net.blocks.73.mlp" in about(page)


def test_three_hundred_nodes(page):
    size = 300
    graph = made_up([[k // 2 - 1, k - 1] if k > 2 else [] for k in range(size)], [f"Net/layers.{k // 10}" for k in range(size)])
    page.set_content(page_of(graph, LIMIT))
    page.wait_for_selector("body[data-ready]")
    assert page.locator("#scene g[id]").count() == size
    overlapping = page.evaluate(
        """() => {
            const boxes = [...document.querySelectorAll('#scene g[id]')].map(g => g.getBBox());
            return boxes.filter((a, k) => boxes.slice(k + 1).some(b => a.x < b.x + b.width && b.x < a.x + a.width
                && a.y < b.y + b.height && b.y < a.y + a.height)).length;
        }"""
    )
    assert overlapping == 0
    node(page, "n0").click()
    assert "near" in classes(page, "n3")


CONTRAST = """selector => {
    const parse = text => text.match(/[\\d.]+/g).map(Number);
    const luminance = rgb => rgb.slice(0, 3).map(c => c / 255)
        .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const ratio = (a, b) => {
        const [x, y] = [luminance(a), luminance(b)].sort((p, q) => p - q);
        return (y + 0.05) / (x + 0.05);
    };
    const paper = parse(getComputedStyle(document.body).backgroundColor);
    return Math.min(...[...document.querySelectorAll(selector)].map(text => {
        const tile = text.parentElement.querySelectorAll('path.t');
        const back = tile.length ? parse(getComputedStyle(tile[tile.length - 1]).fill) : paper;
        return ratio(parse(getComputedStyle(text).fill), back);
    }));
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_readable_in_both_themes(page, theme, tmp_path):
    page.emulate_media(color_scheme=theme)
    show(page, CHAIN)
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(255, 255, 255)" if theme == "light" else "rgb(20, 24, 29)")
    assert page.evaluate(CONTRAST, "#scene g[id] text") >= 4.5
    assert page.evaluate(CONTRAST, "#legend text") >= 4.5
    sizes = page.evaluate(
        "[...new Set([...document.querySelectorAll('#scene text')].map(t => getComputedStyle(t).fontSize))].sort()"
    )
    assert sizes == ["10px", "11px"]
    page.screenshot(path=tmp_path / f"{theme}.png")


def test_texts_fit_their_tiles(page):
    show(page, LARGE)
    wide = page.evaluate(
        """() => [...document.querySelectorAll('#scene g[id]')].filter(g => {
            const tile = [...g.querySelectorAll('path')].at(-1).getBBox();
            return [...g.querySelectorAll('text')].some(t => t.getBBox().width > tile.width);
        }).length"""
    )
    assert wide == 0


@pytest.mark.parametrize(("theme", "colour"), [("light", "#111"), ("dark", "#eee")])
def test_in_a_notebook_it_covers_the_picture_and_follows_the_theme(page, theme, colour):
    page.set_content(f'<body style="color:{colour}">{fragment(CHAIN)}</body>')
    frame = page.frame_locator("iframe")
    frame.locator("body[data-ready]").wait_for()
    assert frame.locator("html").get_attribute("data-theme") == theme
    picture, over = page.locator("img").bounding_box(), page.locator("iframe").bounding_box()
    assert over["x"] == picture["x"] and over["y"] == picture["y"] and over["height"] >= 320
    frame.locator('#scene g[id="n2"]').click()
    assert "Net.second" in frame.locator("#about").inner_text()


def test_a_view_that_is_opened_later_fits_then(page):
    page.set_content(f"<details><summary>more</summary>{fragment(CHAIN)}</details>")
    page.wait_for_timeout(500)
    page.locator("summary").click()
    tile = page.frame_locator("iframe").locator('#scene g[id="n0"]')
    tile.wait_for()
    page.wait_for_timeout(200)
    frame, box = page.locator("iframe").bounding_box(), tile.bounding_box()
    assert box["width"] > 40
    assert frame["x"] < box["x"] and box["x"] + box["width"] < frame["x"] + frame["width"] - 320
    assert frame["y"] < box["y"] < frame["y"] + frame["height"]


def test_without_the_frame_the_picture_has_the_same_places(page):
    show(page, CHAIN)
    places = page.evaluate(
        "[...document.querySelectorAll('#scene g[id] text')].map(t => [t.getAttribute('x'), t.getAttribute('y')])"
    )
    page.goto("about:blank")  # leaves the page's policy, which loads no picture
    page.set_content(fragment(CHAIN).partition("<iframe")[0] + "</div>")
    assert page.locator("img").evaluate("image => image.naturalWidth") > 100
    source = page.locator("img").get_attribute("src").partition(",")[2]
    page.set_content(page.evaluate("source => atob(source)", source))
    texts = page.evaluate("[...document.querySelectorAll('.c text')].map(t => [t.getAttribute('x'), t.getAttribute('y')])")
    assert texts == places


def test_a_hostile_name_stays_text(page):
    name = "<img src=x onerror=alert(1)><script>alert(1)<b>"
    hostile = replace(CHAIN, name=name, ops=tuple(replace(op, module=f"{name}/{name}") for op in CHAIN.ops))
    dialogs = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    show(page, hostile)
    node(page, "n2").click()
    assert "<script>alert(1)<b>" in about(page)
    page.locator("#search").fill("img")
    assert page.locator("#view img, #about img, #trail img").count() == 0
    assert dialogs == []
