"""Every tutorial runs as it is, asserts what it says, and leaves outputs of a size that people can open.

`01_quickstart` runs from the built wheel in tests/test_packaging.py.
"""

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
TUTORIALS = [path for path in sorted(FOLDER.glob("*.ipynb")) if path.stem != "01_quickstart"]
_LARGEST = 200_000  # bytes of one output


def named(path: Path) -> str:
    return path.stem


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=named)
def test_it_runs(path, tmp_path):
    book = nbformat.read(path, as_version=4)
    NotebookClient(book, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    for k, cell in enumerate(book.cells):
        for output in cell.get("outputs", ()):
            assert len(json.dumps(output)) <= _LARGEST, f"cell {k} has an output of {len(json.dumps(output)):,} bytes"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=named)
def test_it_is_kept_without_outputs(path):
    book = nbformat.read(path, as_version=4)
    assert [cell.outputs for cell in book.cells if cell.cell_type == "code" and cell.outputs] == []
    assert any("assert" in cell.source for cell in book.cells if cell.cell_type == "code")
