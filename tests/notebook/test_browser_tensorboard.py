"""A profile in TensorBoard, inside a notebook: embedded while the page is open, and honest when it is opened again. Offline."""

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from tests.notebook.front_ends import use_theme
from tests.notebook.test_browser import contrast
from tests.notebook.test_browser_live import Console, outputs, write
from tests.profiler.on_disk import write_run
from tests.profiler.reverse_proxy import proxied
from torchtpu.notebook_ext.profile_view import bundle
from torchtpu.profiler import tensorboard

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CAPTURE = """%load_ext torchtpu
import torch, torchtpu
x = torch.randn(256, 256).to("tpu")
with torchtpu.profiler.profile("logs") as p:
    for _ in range(3):
        torch.tanh(x @ x).sum().item()
busy = sum(k.seconds for k in p.kernels)
print("share", 100 * max(k.seconds for k in p.kernels) / busy)"""
SHOW = "%tpu_tensorboard logs"
DOCTOR = "%tpu doctor"
FRAME = ".jp-OutputArea-output iframe"
OUTPUT = ".jp-OutputArea-output[data-mime-type='text/html']"
BUTTON = "Show it here, if it still runs"


def xprof(page):
    """XProf's page in TensorBoard's in the notebook's."""
    return page.frame_locator(FRAME).frame_locator("iframe")


def choose(page, tool: str) -> None:
    """Choose a tool as a user does."""
    xprof(page).locator("mat-select").nth(1).click()
    xprof(page).get_by_role("option", name=tool).click()


def percents(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"(\d+\.\d+)%", text)]


@pytest.fixture(scope="module", params=["JupyterLab Light", "JupyterLab Dark"])
def ran(server, browser, request, tmp_path_factory) -> Iterator[tuple[Path, dict[str, object]]]:
    """A notebook that was run with the keyboard in JupyterLab and saved, what was seen meanwhile, and its open page."""
    address, root = server
    theme = request.param.split()[-1].lower()
    path = root / f"tensorboard_{theme}.ipynb"
    write(path, CAPTURE, SHOW, DOCTOR)
    use_theme(root, request.param)
    shots = tmp_path_factory.mktemp("shots")
    page = browser.new_page(viewport={"width": 1280, "height": 1200})
    seen: dict[str, object] = {"console": Console(page), "page": page}
    page.goto(f"{address}/lab/tree/{path.name}?reset")
    page.locator(".jp-Notebook .cm-content").first.click()
    page.wait_for_selector("[data-status=idle]", timeout=60_000)
    for _ in range(3):
        page.keyboard.press("Shift+Enter")
    xprof(page).get_by_text("Run Environment").wait_for(timeout=120_000)
    xprof(page).get_by_text("No step marker").or_(xprof(page).get_by_text("Performance Summary")).first.wait_for()
    seen["overview"] = xprof(page).locator("body").inner_text()
    page.screenshot(path=shots / f"overview_{theme}.png")
    choose(page, "HLO Op Profile")
    xprof(page).get_by_text("HLO OP NAME").wait_for(timeout=60_000)
    xprof(page).get_by_text(re.compile(r"^\s*\d+\.\d\d%\s*$")).first.wait_for(timeout=60_000)
    seen["op profile"] = xprof(page).locator("body").inner_text()
    page.screenshot(path=shots / f"op_profile_{theme}.png")
    choose(page, "Trace Viewer")
    viewer = xprof(page).frame_locator("iframe")
    viewer.get_by_text("XLA Ops").first.wait_for(state="attached", timeout=60_000)
    seen["trace"] = viewer.locator("body").inner_text()
    page.screenshot(path=shots / f"trace_{theme}.png")
    page.get_by_text("registered once").wait_for(timeout=60_000)
    page.locator(OUTPUT).last.scroll_into_view_if_needed()
    seen["doctor"] = page.locator(OUTPUT).last.inner_text()
    seen["contrast"] = [contrast(page, f"{OUTPUT} {e}") for e in ("b", "a", "code")]
    seen["contrast"] += [contrast(page, f".jp-Cell:nth-child(3) {OUTPUT} {e}") for e in ("td", "td span")]
    page.screenshot(path=shots / f"doctor_{theme}.png")
    page.locator(".jp-Notebook .cm-content").first.click()
    page.keyboard.press("Control+s")
    page.wait_for_function("!document.querySelector('.jp-mod-dirty')")
    for _ in range(100):
        if outputs(path)[2]:
            break
        page.wait_for_timeout(100)
    seen["logdir"] = root / "logs"
    seen["runs"] = sorted(run.name for run in (root / "logs" / "plugins" / "profile").iterdir())
    yield path, seen
    page.close()


def test_it_opens_at_the_run_with_real_figures(ran):
    path, seen = ran
    overview = seen["overview"]
    assert seen["runs"][-1] in overview
    assert "XLA:CPU" in overview
    assert any(value > 0 for value in percents(overview))
    printed = nbformat.read(path, as_version=4).cells[0].outputs[0].text
    (share,) = [float(line.split()[1]) for line in printed.splitlines() if line.startswith("share")]
    assert any(abs(value - share) < 0.01 for value in percents(seen["op profile"])), (share, seen["op profile"])
    assert "XLA Modules" in seen["trace"]
    assert "torchtpu ops" in seen["trace"]


def test_UP_146_only_the_charts_of_google_are_missing_offline(ran):
    others = [text for text in ran[1]["console"] if "gstatic" not in text and "google is not defined" not in text]
    assert [text for text in others if "torchtpu" in text.lower() or "profile_view" in text] == []


def test_the_doctor_finds_the_server_and_the_run(ran):
    text = ran[1]["doctor"]
    assert text.startswith("doctor")
    assert "no problems" in text
    assert f"the newest {ran[1]['runs'][-1]}" in text
    assert f"of {ran[1]['logdir']}, at http://127.0.0.1:" in text


def test_it_is_readable_in_light_and_dark(ran):
    assert all(value >= 4.5 for value in ran[1]["contrast"]), ran[1]["contrast"]


def test_the_saved_file_says_what_was_shown_and_holds_no_frame(ran):
    path, seen = ran
    ((output,), _) = outputs(path)[1:3]
    assert set(output["data"]) == {"text/html", "text/plain"}
    assert "<iframe" not in output["data"]["text/html"]
    assert output["data"]["text/plain"].startswith(f"torchtpu TensorBoard: run {seen['runs'][-1]}")


def test_opened_again_it_has_a_button_while_the_kernel_runs_and_the_truth_afterwards(page, server, ran):
    path, seen = ran
    place = f"{server[0]}/lab/tree/{path.name}?reset"
    page.goto(place)
    button = page.get_by_role("button", name=BUTTON)
    button.wait_for(timeout=60_000)
    assert page.locator(FRAME).count() == 0
    assert f"run {seen['runs'][-1]}" in page.locator(OUTPUT).first.inner_text()
    button.click()
    xprof(page).get_by_text("Run Environment").wait_for(timeout=60_000)
    for kernel in page.request.get(f"{server[0]}/api/kernels").json():
        cookies = {c["name"]: c["value"] for c in page.context.cookies()}
        page.request.delete(f"{server[0]}/api/kernels/{kernel['id']}", headers={"X-XSRFToken": cookies.get("_xsrf", "")})
    port = re.search(r"127\.0\.0\.1:(\d+)", nbformat.read(path, as_version=4).cells[1].outputs[0]["data"]["text/plain"])[1]
    for _ in range(300):
        if tensorboard.owner_of(int(port)) is None:
            break
        page.wait_for_timeout(100)
    page.goto(place)
    button.wait_for(timeout=60_000)
    button.click()
    told = page.get_by_text(f"No TensorBoard of this log directory answers at http://127.0.0.1:{port}/")
    told.wait_for(timeout=60_000)
    assert told.inner_text().endswith("Run the cell again.")
    assert page.locator(FRAME).count() == 0


@pytest.mark.parametrize("place", ["lab/tree", "notebooks"], ids=["JupyterLab", "Notebook 7"])
def test_somebody_who_does_not_trust_it_reads_what_was_shown(page, server, ran, place):
    address, root = server
    book = nbformat.read(ran[0], as_version=4)
    book.metadata["sent_by"] = "somebody"  # another content, which nobody has signed
    nbformat.write(book, root / "untrusted tensorboard.ipynb")
    page.goto(f"{address}/{place}/untrusted tensorboard.ipynb" + ("?reset" if place == "lab/tree" else ""))
    page.get_by_text("open in a new tab").wait_for(timeout=60_000)
    assert f"run {ran[1]['runs'][-1]}" in page.locator(OUTPUT).first.inner_text()
    assert page.get_by_role("button", name=BUTTON).count() == 0
    assert page.locator(FRAME).count() == 0


PREFIX = "/user/ada/"


@pytest.fixture
def profile(tmp_path):
    """A server that this process started, of a profile with one event."""
    write_run(tmp_path, "a")
    server = tensorboard.start(tmp_path)
    yield server
    server.stop()


def hub(html: str) -> str:
    """A page like JupyterLab's, with an output."""
    config = f'<script id="jupyter-config-data" type="application/json">{{"baseUrl": "{PREFIX}"}}</script>'
    return f"<!DOCTYPE html><title>Lab</title>{config}<div class='jp-OutputArea-output'>{html}</div>"


@pytest.mark.parametrize("known", [True, False], ids=["by its environment", "by its page"])
def test_UP_145_behind_a_hub_it_is_shown_through_the_proxy(page, tmp_path, monkeypatch, known):
    """Also where the kernel does not know that its server has a proxy: the page does."""
    if known:
        monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", PREFIX)
    write_run(tmp_path, "a")
    server = tensorboard.start(tmp_path)
    html = bundle(server, "a")["text/html"]
    with proxied(PREFIX, {f"{PREFIX}lab": hub(html)}) as (address, _):
        address = address.replace("127.0.0.1", "hub.localhost")  # another machine, by its name
        page.goto(f"{address}{PREFIX}lab")
        page.get_by_role("button", name=BUTTON).click()
        xprof(page).get_by_text("Performance Summary").wait_for(timeout=60_000)
        base = f"{address}{PREFIX}proxy/{server.port}/"
        assert page.get_by_text("open in a new tab").get_attribute("href") == f"{base}?run=a#profile"
        assert all(frame.url.startswith(base) for frame in page.frames[1:])
        page.goto("about:blank")
        server.stop()
        page.goto(f"{address}{PREFIX}lab")
        page.get_by_role("button", name=BUTTON).click()
        page.get_by_text(f"No TensorBoard of this log directory answers at {base}").wait_for()


def test_a_page_from_another_machine_without_a_proxy_says_how_to_get_there(page, profile):
    html = bundle(profile, "a")["text/html"]
    with proxied("/elsewhere/", {"/lab": f"<div class='jp-OutputArea-output'>{html}</div>"}) as (address, _):
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{address.replace('127.0.0.1', 'box.localhost')}/lab")
        page.get_by_role("button", name=BUTTON).click()
        told = page.get_by_text("This page comes from box.localhost, and TensorBoard listens on that machine alone")
        told.wait_for()
        assert f"ssh -L {profile.port}:127.0.0.1:{profile.port} box.localhost" in told.inner_text()
        assert [url for url in asked if f":{profile.port}/" in url] == []  # that would be a port of the reader's machine
        page.goto("about:blank")


def test_another_tensorboard_at_the_port_is_not_taken_for_it(page, profile, tmp_path, monkeypatch):
    """Through a proxy the page can ask whose it is."""
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", PREFIX)
    write_run(tmp_path / "other", "b")
    other = tensorboard.start(tmp_path / "other")
    html = bundle(other, "b")["text/html"].replace(f'"port": {other.port}', f'"port": {profile.port}')
    html = html.replace(f"/proxy/{other.port}/", f"/proxy/{profile.port}/")
    with proxied(PREFIX, {f"{PREFIX}lab": hub(html)}) as (address, _):
        page.goto(f"{address}{PREFIX}lab")
        page.get_by_role("button", name=BUTTON).click()
        page.get_by_text("No TensorBoard of this log directory answers at ").wait_for()
        page.goto("about:blank")
    other.stop()
