"""A notebook in this process: cells run one after another, as a front end would send them."""

import atexit
import contextlib
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from traitlets.config import Config

from tests.notebook.front_ends import WIDTH, served

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class Notebook:
    """A shell, and what its cells printed and displayed."""

    def __init__(self, ipython_dir: str) -> None:
        settings = Config()
        settings.HistoryManager.enabled = False
        InteractiveShell.clear_instance()  # %%capture and display() look for the one instance
        self.shell = InteractiveShell.instance(config=settings, ipython_dir=ipython_dir)
        self.shell.display_pub = CapturingDisplayPublisher()
        self.printed = ""

    def run(self, *lines: str, silent: bool = False) -> ExecutionResult:
        """Run a cell; what it prints (tracebacks too) is then in `printed`."""
        self.shell.display_pub.outputs.clear()
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            result = self.shell.run_cell("\n".join(lines), store_history=not silent, silent=silent)
        self.printed = _ESCAPES.sub("", out.getvalue())
        return result

    def close(self) -> None:
        """End the shell; its own way takes a garbage collection per shell."""
        atexit.unregister(self.shell.atexit_operations)
        self.shell.restore_sys_module_state()
        # IPython's completer keeps the module of the shell that it was first imported under, for as long as Python runs.
        self.shell.user_ns.clear()
        InteractiveShell.clear_instance()

    @property
    def reports(self) -> list[dict[str, str]]:
        """The reports below the last cell, as bundles by MIME type."""
        bundles = [output["data"] for output in self.shell.display_pub.outputs]
        return [data for data in bundles if data.get("text/plain", "").startswith("torchtpu ")]

    @property
    def report(self) -> str:
        """The one report below the last cell, as text."""
        (data,) = self.reports
        return data["text/plain"]


@pytest.fixture
def new_notebook(tmp_path, monkeypatch) -> Iterator[Callable[[], Notebook]]:
    """Makes notebooks that have loaded torchtpu, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    books: list[Notebook] = []

    def new() -> Notebook:
        book = Notebook(str(tmp_path / f"ipython{len(books)}"))
        books.append(book)
        book.run("%load_ext torchtpu")
        book.run("import torch, torchtpu")
        return book

    yield new
    for book in books:
        book.run("%load_ext torchtpu")
        book.run("%tpu_mode strict")
        book.run("%unload_ext torchtpu")
        book.close()


@pytest.fixture
def notebook(new_notebook) -> Notebook:
    """A notebook that has loaded torchtpu."""
    return new_notebook()


@pytest.fixture
def page(browser) -> Iterator:
    page = browser.new_page(viewport={"width": WIDTH, "height": 900})
    yield page
    page.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory) -> Iterator[tuple[str, Path]]:
    """The address of JupyterLab and Notebook 7, and the folder that they serve."""
    root = tmp_path_factory.mktemp("served")
    with served(root) as address:
        yield address, root
