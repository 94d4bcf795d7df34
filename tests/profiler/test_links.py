"""The address of a port behind everything that serves notebooks, and that TensorBoard works there."""

import importlib.util
import sys
import types

import pytest

from tests.profiler.on_disk import write_run
from tests.profiler.reverse_proxy import proxied
from torchtpu.profiler import tensorboard
from torchtpu.profiler.links import profile_url, route
from torchtpu.profiler.tensorboard import get_json

PREFIX = "/user/ada/"


@pytest.mark.parametrize(
    ("environ", "url", "via"),
    [
        ({}, "http://127.0.0.1:6006/", "this machine"),
        ({"TENSORBOARD_PROXY_URL": "/lab/proxy/%PORT%"}, "/lab/proxy/6006/", "a proxy"),
        ({"TENSORBOARD_PROXY_URL": "https://x.org/tb/"}, "https://x.org/tb/", "a proxy"),
        ({"JUPYTERHUB_SERVICE_PREFIX": "/user/ada/"}, "/user/ada/proxy/6006/", "JupyterHub"),
        ({"JUPYTERHUB_SERVICE_PREFIX": "/user/ada"}, "/user/ada/proxy/6006/", "JupyterHub"),
        (
            {"JUPYTERHUB_PUBLIC_URL": "https://hub.org/user/ada/", "JUPYTERHUB_SERVICE_PREFIX": "/user/ada/"},
            "https://hub.org/user/ada/proxy/6006/",
            "JupyterHub",
        ),
        ({"VSCODE_PROXY_URI": "https://code.org/proxy/{{port}}"}, "https://code.org/proxy/6006/", "code-server"),
        ({"VSCODE_PROXY_URI": "https://{{port}}--box.coder.org/"}, "https://6006--box.coder.org/", "code-server"),
        ({"VSCODE_PROXY_URI": "./proxy/{{port}}"}, "http://127.0.0.1:6006/", "code-server"),
        ({"VSCODE_PROXY_URI": "https://{{port}}.{{host}}"}, "http://127.0.0.1:6006/", "code-server"),
        ({"CODESPACE_NAME": "my-space"}, "https://my-space-6006.app.github.dev/", "GitHub Codespaces"),
        (
            {"CODESPACE_NAME": "s", "GITHUB_CODESPACES_PORT_FORWARDING_DOMAIN": "preview.dev"},
            "https://s-6006.preview.dev/",
            "GitHub Codespaces",
        ),
        ({"SAGEMAKER_APP_TYPE": "JupyterLab"}, "/jupyterlab/default/proxy/6006/", "SageMaker Studio"),
        ({"SAGEMAKER_APP_TYPE": "JupyterServer"}, "/jupyter/default/proxy/6006/", "SageMaker Studio"),
        ({"SAGEMAKER_APP_TYPE": "KernelGateway"}, "http://127.0.0.1:6006/", "this machine"),
        ({"NB_PREFIX": "/notebook/team/ada"}, "/notebook/team/ada/proxy/6006/", "Kubeflow"),
        ({"TENSORBOARD_PROXY_URL": "/p/%PORT%", "JUPYTERHUB_SERVICE_PREFIX": "/user/ada/"}, "/p/6006/", "a proxy"),
    ],
)
def test_UP_145_the_address_behind_a_proxy(environ, url, via):
    found = route(6006, environ)
    assert (found.url, found.via) == (url, via)
    assert found.direct == (via == "this machine")
    assert found.because in environ or not environ or found.direct


@pytest.mark.parametrize(
    ("environ", "needs"),
    [
        ({}, ""),
        ({"TENSORBOARD_PROXY_URL": "/p/%PORT%"}, ""),
        ({"TENSORBOARD_PROXY_URL": "/tb/"}, "it has no %PORT%, so it must lead to port 6006"),
        ({"VSCODE_PROXY_URI": "./proxy/{{port}}"}, "it is not a whole address; open /proxy/6006 on the editor's"),
        ({"SSH_CONNECTION": "1 2 3 4"}, "from another machine, a tunnel: ssh -L 6006:127.0.0.1:6006 this-machine"),
        ({"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}, "a browser on this machine: Kaggle leads to no port of a notebook"),
    ],
)
def test_what_an_address_needs(environ, needs):
    assert route(6006, environ).needs == needs


@pytest.mark.parametrize("installed", [True, False])
def test_a_hub_needs_jupyter_server_proxy_in_the_servers_environment(monkeypatch, installed):
    there = importlib.util.find_spec
    found = types.SimpleNamespace() if installed else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: found if n == "jupyter_server_proxy" else there(n, *a))
    needs = route(6006, {"JUPYTERHUB_SERVICE_PREFIX": PREFIX}).needs
    assert needs.startswith("jupyter-server-proxy in the environment of the notebook's server")
    assert ("(in the kernel's it is not installed)" in needs) != installed


@pytest.mark.parametrize("answers", [True, False])
def test_colab_is_asked_for_the_address(monkeypatch, answers):
    asked = []

    def eval_js(code: str) -> str:
        asked.append(code)
        if not answers:
            raise TimeoutError
        return "https://abc-6006-colab.googleusercontent.com"

    output = types.ModuleType("google.colab.output")
    output.eval_js = eval_js
    colab = types.ModuleType("google.colab")
    colab.output = output
    for module in (types.ModuleType("google"), colab, output):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    found = route(6006, {})
    assert asked == ["google.colab.kernel.proxyPort(6006, {'cache': true})"]
    expected = "https://abc-6006-colab.googleusercontent.com/" if answers else "http://127.0.0.1:6006/"
    assert (found.url, found.via) == (expected, "Colab")
    assert "third-party cookies" in found.needs


def test_the_address_of_a_run_in_a_tool():
    assert profile_url("/p/") == "/p/#profile"
    assert profile_url("/p/", "a") == "/p/?run=a#profile"
    assert profile_url("/p/", "train/a b&c", "trace_viewer@") == "/p/?run=train%2Fa+b%26c&tag=trace_viewer%40#profile"


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", PREFIX)
    write_run(tmp_path, "first")
    write_run(tmp_path / "train", "second")
    started = tensorboard.start(tmp_path)
    yield started
    started.stop()


def test_UP_145_data_comes_through_a_proxy_that_strips_its_prefix(server):
    with proxied(PREFIX, {}) as (address, _):
        assert server.url == f"{PREFIX}proxy/{server.port}/"
        assert get_json(f"{address}{server.url}data/plugin/profile/runs") == ["train/second", "first"]


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize(("run", "tool"), [("train/second", "Overview Page"), ("first", "Trace Viewer")])
def test_UP_145_the_page_works_behind_a_proxy_and_opens_at_the_run(page, server, run, tool):
    tag = {"Overview Page": "overview_page", "Trace Viewer": "trace_viewer@"}[tool]
    with proxied(PREFIX, {}) as (address, lost):
        page.goto(f"{address}{server.profile_url(run, tag)}")
        xprof = page.frame_locator("iframe")
        xprof.get_by_text(run, exact=True).first.wait_for(timeout=60_000)
        xprof.get_by_text(tool, exact=True).first.wait_for(timeout=60_000)
        if tool == "Overview Page":
            xprof.get_by_text("Performance Summary").wait_for(timeout=60_000)
        else:
            viewer = xprof.frame_locator("iframe")
            viewer.get_by_text("laptop /host:CPU").first.wait_for(state="attached", timeout=60_000)
        assert all(f"{PREFIX}proxy/{server.port}/" in frame.url for frame in page.frames)
        # TensorBoard asks for its fonts by absolute paths: behind a proxy the browser's own are used.
        assert [path for path in lost if not path.startswith(("/font-roboto/", "/favicon.ico"))] == []
        page.goto("about:blank")


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    yield page
    page.close()
