"""Does it fit? The largest batch of a training step on a TPU chip, found by compiling it, and advice that was tried."""

from torchtpu.fit.fitting import fit
from torchtpu.fit.result import Answer, Fit, FitRow

__all__ = ["Answer", "Fit", "FitRow", "fit"]
