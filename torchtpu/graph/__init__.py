"""Programs as graphs: what fusion made of the user's ops, to look at in a notebook and to save.

`build` makes a `ProgramGraph` from a report's row, `hlo` reads the kernels from the compiler's text, `tree` nests ops by
module and kernel and folds what is too much to draw, `layout` gives places, and `to_*` write it.
"""

from torchtpu.graph.build import program_graph, watched_graph
from torchtpu.graph.model import Box, Edge, ProgramGraph

__all__ = ["Box", "Edge", "ProgramGraph", "program_graph", "watched_graph"]
