"""What gets installed: one package, `torchtpu`, with the folders `notebook_ext` and `profiler` inside it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import nbformat
import pytest

ROOT = Path(__file__).parents[1]


def run(*command: object, cwd: Path, **environment: str) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy: setuptools would add what earlier builds left in `build/`."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, tree)
    for name in ("torchtpu", "notebook_ext", "profiler"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, tree, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def files(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def info(wheel: Path) -> str:
    name, version, *_ = wheel.name.split("-")
    return f"{name}-{version}.dist-info"


def test_wheel_claims_one_name(files: set[str], info: str) -> None:
    assert {name.split("/")[0] for name in files} == {"torchtpu", info}


@pytest.mark.parametrize(
    ("folder", "package"),
    [("torchtpu", "torchtpu"), ("notebook_ext", "torchtpu/notebook_ext"), ("profiler", "torchtpu/profiler")],
)
def test_wheel_has_every_file(files: set[str], folder: str, package: str) -> None:
    sources = [file for file in (ROOT / folder).rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    expected = {f"{package}/{file.relative_to(ROOT / folder).as_posix()}" for file in sources}
    assert f"{package}/__init__.py" in expected
    assert expected - files == set()


def test_wheel_has_the_licence(files: set[str], info: str) -> None:
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE"} <= files


def test_installed_wheel_imports_outside_the_tree(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel, cwd=tmp_path)
    # A user's own files of these names must not get in the way, nor be shadowed.
    for name in ("profiler", "notebook_ext"):
        (tmp_path / f"{name}.py").write_text(f"NAME = 'mine: {name}'\n")
    code = (
        "import torchtpu, torchtpu.notebook_ext, torchtpu.profiler, profiler, notebook_ext\n"
        "for module in (torchtpu, torchtpu.notebook_ext, torchtpu.profiler): print(module.__file__)\n"
        "print(profiler.NAME, notebook_ext.NAME)"
    )
    *paths, names = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(site)).splitlines()
    assert paths == [str(site / "torchtpu" / name / "__init__.py") for name in ("", "notebook_ext", "profiler")]
    assert names == "mine: profiler mine: notebook_ext"


def test_installed_wheel_runs_the_quickstart_outside_the_tree(wheel: Path, tmp_path: Path) -> None:
    """The notebook asserts its own claims: accuracy, agreement of the modes, no compile after the warm-up."""
    site = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel, cwd=tmp_path)
    notebook = nbformat.reads((ROOT / "notebooks" / "01_quickstart.ipynb").read_text(), as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell("print(torchtpu.__file__)"))
    nbformat.write(notebook, tmp_path / "quickstart.ipynb")
    execute = ("-m", "nbconvert", "--KernelManager.transport_encryption=auto", "--to", "notebook", "--execute", "--inplace")
    run(sys.executable, *execute, "quickstart.ipynb", cwd=tmp_path, PYTHONPATH=str(site))
    executed = nbformat.reads((tmp_path / "quickstart.ipynb").read_text(), as_version=4)
    assert executed.cells[-1].outputs[0].text.strip() == str(site / "torchtpu" / "__init__.py")
    reports = [o for c in executed.cells if c.cell_type == "code" for o in c.outputs if "HBM peak" in str(o.get("data", ""))]
    assert len(reports) == 5


def test_the_tree_imports_as_installed() -> None:
    """A development install (`make setup`) maps the same folders to the same names."""
    import torchtpu.notebook_ext
    import torchtpu.profiler

    assert Path(torchtpu.__file__).parent == ROOT / "torchtpu"
    assert Path(torchtpu.notebook_ext.__file__).parent == ROOT / "notebook_ext"
    assert Path(torchtpu.profiler.__file__).parent == ROOT / "profiler"
