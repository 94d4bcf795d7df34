"""The address at which a browser reaches a port of this machine: directly, or through what the notebook is served by."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

LOOPBACK = "127.0.0.1"

_SAGEMAKER = {"jupyterlab": "jupyterlab", "jupyterserver": "jupyter"}  # the folder that an app's pages are in, by its type


@dataclass(frozen=True, slots=True)
class Route:
    """A way from a browser to a port.

    Attributes:
        url: ends with a slash. Behind JupyterHub and its like it has no host: it is one on the page that shows the notebook.
        via: what leads there, in a word or two.
        because: the environment variable that says so, or empty.
        needs: what must be true for it to work, which cannot be seen from here; empty if nothing.
    """

    url: str
    via: str
    because: str = ""
    needs: str = ""

    @property
    def direct(self) -> bool:
        """Whether the browser connects to loopback itself."""
        return self.via == "this machine"


def route(port: int, environ: Mapping[str, str] | None = None) -> Route:
    """Find the way to a port of this machine, by what the environment says of the notebook's server.

    The first of: `TENSORBOARD_PROXY_URL`, Colab, `VSCODE_PROXY_URI` (code-server, Coder), GitHub Codespaces, JupyterHub,
    SageMaker Studio, Kubeflow; else `http://127.0.0.1:port/`.
    """
    env = os.environ if environ is None else environ
    return (
        _tensorboard(port, env)
        or _colab(port)
        or _code_server(port, env)
        or _codespaces(port, env)
        or _jupyter(port, env)
        or _direct(port, env)
    )


def profile_url(base: str, run: str | None = None, tool: str | None = None) -> str:
    """Return the address of TensorBoard's profile page.

    Args:
        base: of TensorBoard, as `Route.url` has it.
        run: to show, as TensorBoard lists it. None: the page chooses.
        tool: of XProf, `overview_page` or `trace_viewer@` say. None: the first that the run has.
    """
    # XProf reads the query of the page that it is embedded in; TensorBoard takes its tab from the fragment.
    query = urlencode({k: v for k, v in (("run", run), ("tag", tool)) if v})
    return f"{base}{'?' if query else ''}{query}#profile"


def _slash(url: str) -> str:
    return url if url.endswith("/") else f"{url}/"  # TensorBoard's own addresses are relative


def _tensorboard(port: int, env: Mapping[str, str]) -> Route | None:
    name = "TENSORBOARD_PROXY_URL"
    if not (url := env.get(name)):
        return None
    needs = "" if "%PORT%" in url else f"it has no %PORT%, so it must lead to port {port}"
    return Route(_slash(url.replace("%PORT%", str(port))), "a proxy", name, needs)


def _colab(port: int) -> Route | None:
    output = sys.modules.get("google.colab.output")
    if output is None and "google.colab" not in sys.modules:
        return None
    needs = "third-party cookies, which Colab's proxy needs"
    try:
        from google.colab import output  # type: ignore[import-not-found]

        url = output.eval_js(f"google.colab.kernel.proxyPort({port}, {{'cache': true}})")
    except Exception:  # no front end is connected, or it has changed: the page asks again itself
        url = f"http://{LOOPBACK}:{port}/"
    return Route(_slash(str(url)), "Colab", "", needs)


def _code_server(port: int, env: Mapping[str, str]) -> Route | None:
    name = "VSCODE_PROXY_URI"
    url = env.get(name, "").replace("{{port}}", str(port))
    if not url:
        return None
    if "://" not in url or "{{" in url:
        # Relative to the editor's page, which a notebook's output is not on.
        needs = f"it is not a whole address; open {url.removeprefix('.')} on the editor's"
        return Route(f"http://{LOOPBACK}:{port}/", "code-server", name, needs)
    return Route(_slash(url), "code-server", name)


def _codespaces(port: int, env: Mapping[str, str]) -> Route | None:
    name = "CODESPACE_NAME"
    if not (space := env.get(name)):
        return None
    domain = env.get("GITHUB_CODESPACES_PORT_FORWARDING_DOMAIN", "app.github.dev")
    return Route(f"https://{space}-{port}.{domain}/", "GitHub Codespaces", name, "the port forwarded, as it is once it is open")


def _jupyter(port: int, env: Mapping[str, str]) -> Route | None:
    proxy = "jupyter-server-proxy in the environment of the notebook's server"
    if importlib.util.find_spec("jupyter_server_proxy") is None:
        proxy += " (in the kernel's it is not installed)"
    if url := env.get("JUPYTERHUB_PUBLIC_URL"):
        return Route(f"{_slash(url)}proxy/{port}/", "JupyterHub", "JUPYTERHUB_PUBLIC_URL", proxy)
    if prefix := env.get("JUPYTERHUB_SERVICE_PREFIX"):
        return Route(f"{_slash(prefix)}proxy/{port}/", "JupyterHub", "JUPYTERHUB_SERVICE_PREFIX", proxy)
    if place := _SAGEMAKER.get(env.get("SAGEMAKER_APP_TYPE", "").lower()):
        return Route(f"/{place}/default/proxy/{port}/", "SageMaker Studio", "SAGEMAKER_APP_TYPE", proxy)
    if prefix := env.get("NB_PREFIX"):
        return Route(f"{_slash(prefix)}proxy/{port}/", "Kubeflow", "NB_PREFIX", proxy)
    return None


def _direct(port: int, env: Mapping[str, str]) -> Route:
    needs = ""
    if "KAGGLE_KERNEL_RUN_TYPE" in env:
        needs = "a browser on this machine: Kaggle leads to no port of a notebook"
    elif "SSH_CONNECTION" in env:
        needs = f"from another machine, a tunnel: ssh -L {port}:{LOOPBACK}:{port} this-machine"
    return Route(f"http://{LOOPBACK}:{port}/", "this machine", "", needs)
