"""`%tpu_profile_diff`: what differs between two profiles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from torchtpu.errors import did_you_mean

if TYPE_CHECKING:
    from torchtpu.profiler import Profile

_WHAT = "the folder of a run, LOGDIR/RUN, a saved .json, or the name of a variable that holds a profile"


@magics_class
class ProfileDiffMagics(Magics):
    """`%tpu_profile_diff`."""

    @magic_arguments()
    @argument("before", help=f"{_WHAT}.")
    @argument("after", help="another.")
    @line_magic
    def tpu_profile_diff(self, line: str) -> None:
        """Show what differs between two profiles: steps, ops by line, programs, kernels, idle time, compiles, HBM."""
        from torchtpu.profiler.difference import compare

        arguments = parse_argstring(self.tpu_profile_diff, line)
        names = [name.strip("'\"") for name in (arguments.before, arguments.after)]  # IPython keeps quotes
        before, after = (self._profile(name) for name in names)
        shown = [name if name in self.shell.user_ns else Path(name).name for name in names]
        display(compare(before, after, (shown[0], shown[1])))

    def _profile(self, name: str) -> Profile:
        """Return what an argument stands for."""
        from torchtpu.profiler import Capture, Profile, ProfileOpenError

        value = self.shell.user_ns.get(name)
        if isinstance(value, Profile):
            return value
        try:
            if isinstance(value, Capture):
                return value.profile
            return Profile.load(name)
        except FileNotFoundError as error:
            if value is not None:
                raise UsageError(f"{name} is a {type(value).__name__}: %tpu_profile_diff takes {_WHAT}") from None
            profiles = [n for n, v in self.shell.user_ns.items() if isinstance(v, Profile | Capture) and n[0] != "_"]
            raise UsageError(f"{error} No variable holds one either.{did_you_mean(name, profiles)}") from None
        except (ProfileOpenError, OSError, ValueError) as error:
            raise UsageError(f"{name}: {error}") from None
