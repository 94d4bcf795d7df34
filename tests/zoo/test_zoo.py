"""A few models of transformers, where it is installed; `make models` runs all of the table."""

import pytest

from tests.zoo import ARCHITECTURES, check, libraries

_KNOWN = {a.name: a for a in ARCHITECTURES}


@pytest.mark.skipif(bool(libraries.missing("transformers")), reason=libraries.missing("transformers"))
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["OPT", "T5", "ViT", "Wav2Vec2"])
def test_a_model_trains_and_generates_as_on_the_cpu(name):
    for outcome in check.run(_KNOWN[name]).values():
        assert outcome.error == ""
        assert outcome.fallbacks == {}
        assert outcome.compiles[1] == 0, "the third step found all its programs"


def test_the_names_are_told_apart():
    assert len(_KNOWN) == len(ARCHITECTURES) >= 60
