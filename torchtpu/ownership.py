"""What a buffer is for, noted while somebody watches: it is needed when the buffer and its names are long gone.

Each buffer has an `Owner`, shared with the buffers that replace it when an op writes its tensor in place: what is learned
of the last one (its name at the end) is known of all. An owner holds no buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torchtpu.buffer import Buffer
    from torchtpu.holders import Holder
    from torchtpu.modes.deferred import Graph
    from torchtpu.plan import Plan

# When a buffer was made: before anybody watched, by a copy from the host, or by an op of a phase of training.
BEFORE, HOST, FORWARD, BACKWARD, OPTIMIZER = range(5)

_graph_task = torch._C._current_graph_task_id


class Owner:
    """What is known of a tensor's memory.

    Attributes:
        phase: when it was made.
        read_in_backward: a backward op took it as an input: it was saved for that, if the forward pass made it.
        stepped: an optimizer wrote it.
        ended: the backward pass that made it has freed it again.
        holder: who was found to hold it when a watch ended.
        root: the owner whose memory this turned out to be, once known; everything else is noted there.
    """

    __slots__ = ("phase", "read_in_backward", "stepped", "ended", "holder", "root")

    def __init__(self, phase: int) -> None:
        self.phase = phase
        self.read_in_backward = self.stepped = self.ended = False
        self.holder: Holder | None = None
        self.root: Owner | None = None


def owner_of(buffer: Buffer, phase: int) -> Owner:
    """Return a buffer's owner; a new one of this phase if it has none yet."""
    owner = getattr(buffer, "owner", None)  # the slot is filled only here
    if owner is None:
        buffer.owner = owner = Owner(phase)
    return owner


_stepping = False


def step_begins(*_: Any) -> None:
    """Take what follows for an optimizer's work."""
    global _stepping
    _stepping = True


def step_ends(*_: Any) -> None:
    """The optimizer is done."""
    global _stepping
    _stepping = False


def record(plan: Plan, inputs: Sequence[Buffer], outputs: Iterable[Buffer]) -> None:
    """Note an op's part in the life of its buffers, before or after they have arrays."""
    if _graph_task() != -1:
        phase = BACKWARD
        for b in inputs:
            owner_of(b, BEFORE).read_in_backward = True
    else:
        # The closure that some optimizers call in their step is not theirs: it runs with gradients enabled.
        phase = OPTIMIZER if _stepping and not torch.is_grad_enabled() else FORWARD
    made = len(plan.specs)
    for k, b in enumerate(outputs):
        if k < made:
            owner_of(b, phase).phase = phase
        elif plan.writes[k - made] in plan.needs:
            written = owner_of(inputs[plan.needs.index(plan.writes[k - made])], BEFORE)
            written.stepped |= phase == OPTIMIZER
            owner_of(b, phase).root = written
            b.owner = written
        else:  # the old values were not read: whose they were is not known here
            owner_of(b, phase).phase = phase


class Passing:
    """Results of a graph that one of its programs makes and another uses, and that nothing else holds."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._node_of_slot = [k for k, node in enumerate(graph.nodes) for _ in node.plan.outputs]
        self._saved = {r for node in graph.nodes if node.backward for r in node.refs}

    def own(self, buffer: Buffer, slot: int) -> None:
        """Note the line and the owner of the buffer of a slot."""
        k = self._node_of_slot[slot]
        buffer.origin = self._graph.origins[k]
        backward = self._graph.nodes[k].backward
        buffer.owner = owner = Owner(BACKWARD if backward else FORWARD)
        owner.read_in_backward = slot in self._saved
        owner.ended = backward
