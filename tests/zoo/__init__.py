"""Models that nobody here wrote: architectures of transformers and timm, tiny and random, on `tpu` against the CPU."""

from tests.zoo import audio, text, timm_models, vision

ARCHITECTURES = (*text.ARCHITECTURES, *vision.ARCHITECTURES, *audio.ARCHITECTURES, *timm_models.ARCHITECTURES)
