"""Why a program was compiled: its key is compared with the closest one that was compiled before.

`ops` does this for programs of one op, `graphs` for those of pending graphs; both build on `differences` between two plans
of an op. What was compiled is remembered always, in a few words and without device memory; it is explained only while
somebody watches.
"""

from torchtpu.causes.cause import Cause, Kind

__all__ = ["Cause", "Kind"]
