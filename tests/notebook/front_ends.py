"""JupyterLab and Notebook 7, served for a browser to look at."""

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

WIDTH = 1280  # pixels


@contextlib.contextmanager
def served(root: Path) -> Iterator[str]:
    """Serve a folder, and yield the address: JupyterLab is at `/lab/tree/`, Notebook 7 at `/notebooks/`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    command += ["--IdentityProvider.token=", f"--ServerApp.root_dir={root}"]
    command += [f"--LabApp.user_settings_dir={root / 'settings'}", f"--LabApp.workspaces_dir={root / 'workspaces'}"]
    use_theme(root, "JupyterLab Light")
    with (root / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=root)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{address}/api", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, (root / "server.log").read_text()
                time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait(30)


def use_theme(root: Path, theme: str) -> None:
    """Let JupyterLab open with a theme, and without asking anything."""
    settings = root / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "themes.jupyterlab-settings").write_text(json.dumps({"theme": theme}))
    (settings / "notification.jupyterlab-settings").write_text(json.dumps({"fetchNews": "false", "checkForUpdates": False}))
