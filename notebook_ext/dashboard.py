"""`%tpu dashboard`: a panel on the whole session.

While a cell runs, the panel is a live widget (anywidget), pushed to by a thread. When the cell has ended, static HTML takes
its place under the same display id, so that a saved notebook never holds a widget that nobody can draw. Where there is no
anywidget, the static form is pushed instead; a terminal gets text, once.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from torchtpu.notebook_ext import session
from torchtpu.notebook_ext.cells import Cells
from torchtpu.notebook_ext.live import Bundle, can_update

_EVERY = 0.5  # seconds


class Dashboard:
    """The panel of one shell. There is one at a time: opening it again moves it, and the old one stays as it is."""

    def __init__(self, shell: InteractiveShell, cells: Cells) -> None:
        self._shell, self._cells = shell, cells
        self._lock = threading.Lock()
        self._panel: _Panel | None = None

    def open(self) -> None:
        """Show the panel below the running cell."""
        self.close()
        if not can_update(self._shell):
            print(session.look(self._cells.history, None).to_text())
            return
        with self._lock:
            self._panel = panel = _Panel(self._shell)
            panel.show(self._session())
        threading.Thread(target=self._push, args=(panel,), name="torchtpu dashboard", daemon=True).start()

    def close(self) -> None:
        """Leave the panel as it is."""
        with self._lock:
            panel, self._panel = self._panel, None
        if panel is not None:
            panel.over.set()

    def cell_ended(self, *_: Any) -> None:
        """Make the panel static, with the cell that has just ended."""
        with self._lock:
            if self._panel is not None:
                self._panel.show(self._session())

    def _session(self) -> session.Session:
        return session.look(self._cells.history, self._cells.now())

    def _push(self, panel: _Panel) -> None:
        while not panel.over.wait(_EVERY):
            with self._lock:
                if self._panel is not panel:
                    return
                now = self._session()
                if now.running:
                    panel.show_live(now)
                else:
                    panel.show(now)


class _Panel:
    """One display. Callers hold the dashboard's lock."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.over = threading.Event()
        self._publisher = shell.display_pub
        self._display_id = uuid.uuid4().hex
        self._widget: Any = None
        self._shown: session.Session | None = None
        self._live = False

    def show(self, now: session.Session) -> None:
        """Show the static form."""
        if self._live or now != self._shown:
            self._publish({"text/html": now.to_html(), "text/plain": now.to_text()})
            self._shown, self._live = now, False

    def show_live(self, now: session.Session) -> None:
        """Show the widget, or where there is none the static form."""
        if self._widget is None:
            self._widget = new_widget() or False
        if not self._widget:
            self.show(now)
            return
        self._widget.state = now.state()
        if not self._live:
            view = {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}
            self._publish({"application/vnd.jupyter.widget-view+json": view, "text/plain": now.to_text()})
            self._live = True

    def _publish(self, bundle: Bundle | dict[str, Any]) -> None:
        update = self._shown is not None
        transient = {"display_id": self._display_id}
        self._publisher.publish(data=bundle, metadata={}, transient=transient, update=update)


def new_widget() -> Any | None:
    """Make the live panel's widget; None where there is no anywidget, or a front end that must be asked to allow it."""
    if "google.colab" in sys.modules:
        return None
    with contextlib.suppress(ImportError):
        import anywidget
        import traitlets

        class Panel(anywidget.AnyWidget):
            """Draws `Session.state()`."""

            _esm = Path(__file__).with_name("dashboard.js").read_text(encoding="utf-8")
            _css = Path(__file__).with_name("dashboard.css").read_text(encoding="utf-8")
            state = traitlets.Dict().tag(sync=True)

        return Panel()
    return None
