"""What the documentation lists is what the code has."""

import re
from pathlib import Path

import torchtpu.config
import torchtpu.errors

ROOT = Path(__file__).parents[1]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def test_every_environment_variable_is_in_the_table() -> None:
    code = set()
    for folder in ("torchtpu", "notebook_ext", "profiler"):
        for file in (ROOT / folder).rglob("*.py"):
            code |= set(re.findall(r"\bTORCHTPU_[A-Z_]+", file.read_text()))
    assert set(re.findall(r"^\| `(TORCHTPU_[A-Z_]+)`", page("environment.md"), re.MULTILINE)) == code


def test_every_knob_is_documented() -> None:
    documented = set(re.findall(r"`config\.(\w+)`", page("environment.md"))) | {"eager_mode"}
    assert documented == torchtpu.config._KNOBS


def test_every_error_is_in_the_table() -> None:
    ours = {n for n, v in vars(torchtpu.errors).items() if isinstance(v, type) and v.__module__ == "torchtpu.errors"}
    assert set(re.findall(r"^\| `(\w+Error)`", page("errors.md"), re.MULTILINE)) == ours


def test_readme_says_first_that_it_is_independent() -> None:
    first = (ROOT / "README.md").read_text().splitlines()[0]
    assert "Independent of Google's torch_tpu" in first
