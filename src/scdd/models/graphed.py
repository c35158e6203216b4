"""A network behind one CUDA graph: a forward pass for the price of one launch."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.core.denoiser import Denoiser
from scdd.core.types import Head, Vocab

_Captured = tuple[torch.cuda.CUDAGraph, Tensor, Tensor, Tensor, list[Tensor]]
"""A graph, its tokens, times and states; and tables that it reads, which a network replaces when it needs longer ones."""


class Graphed:
    """A `Denoiser` whose `hidden` replays a captured graph, one for each shape of z_t that turns up.

    Sampling calls the network hundreds of times on tensors of one shape, where launching kernels costs as much as
    running them.
    """

    def __init__(self, network: Denoiser, most: int = 8) -> None:
        self.network, self._most = network, most
        self.vocab: Vocab = network.vocab
        self._graphs: dict[tuple[int, ...], _Captured] = {}

    @property
    def head(self) -> Head:
        """The network's."""
        return self.network.head

    def hidden(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """The network's, replayed; packed or padded rows and anything off the GPU go to the network itself."""
        if documents is not None or not z_t.is_cuda or torch.is_grad_enabled():
            return self.network.hidden(z_t, t, documents)
        shape = tuple(z_t.shape)
        if shape not in self._graphs:
            if len(self._graphs) >= self._most:
                self._graphs.pop(next(iter(self._graphs)))
            self._graphs[shape] = self._capture(z_t, t)
        graph, tokens, times, states, _ = self._graphs[shape]
        tokens.copy_(z_t)
        if t is not None:
            times.copy_(t.expand_as(times))
        graph.replay()
        return states.clone()

    def logits(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """The network's, not replayed: dense logits are for tests and small work."""
        return self.network.logits(z_t, t, documents)

    def _capture(self, z_t: Tensor, t: Tensor | None) -> _Captured:
        tokens = z_t.clone()
        times = torch.zeros(z_t.shape[0], dtype=torch.float64, device=z_t.device)
        if t is not None:
            times.copy_(t.expand_as(times))
        given = None if t is None else times
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # compiles and allocates what must not happen inside the capture
            for _ in range(3):
                self.network.hidden(tokens, given)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            states = self.network.hidden(tokens, given)
        return graph, tokens, times, states, list(getattr(self.network, "buffers", list)())
