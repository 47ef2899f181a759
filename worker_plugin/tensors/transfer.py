"""One collective's memory: the contribution that is pushed, the result that arrives, and the user's tensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from reduction.model import Collective

from worker_plugin.tensors.encoding import Encoding, bytes_of
from worker_plugin.tensors.futures import Future
from worker_plugin.tensors.gpu.streams import CudaEvent, Gpu, PendingCopy
from worker_plugin.timeline.recorder import Progress

NOTHING = memoryview(b"")


@dataclass(slots=True, eq=False)
class Transfer:
    """One collective's transfer between the user's tensor and the network."""

    seq: int
    collective: Collective
    tensor: torch.Tensor
    encoding: Encoding
    future: Future
    progress: Progress
    #: The tensor may be read after this event; None for a tensor on the CPU.
    ready: CudaEvent | None
    #: The memory that is pushed from. None until the tensor begins to arrive there, or `begin` has prepared it.
    contribution: torch.Tensor | None = None
    result: torch.Tensor | None = None
    #: For a tensor on a GPU: that GPU, and the copy to host memory.
    gpu: Gpu | None = None
    copy: PendingCopy | None = None
    #: The bytes of contribution and result. They are created once, because Tensor.numpy() takes longer than all other
    #: work for a chunk.
    contribution_bytes: memoryview = NOTHING
    result_bytes: memoryview = NOTHING

    def own(self, contribution: torch.Tensor) -> None:
        """Set the memory of the contribution. From then on chunks can be pushed."""
        self.contribution_bytes = bytes_of(contribution)
        self.contribution = contribution

    def take_result(self, result: torch.Tensor) -> None:
        """Set the memory of the result."""
        self.result = result
        self.result_bytes = bytes_of(result)

    def payload(self, start: int, stop: int) -> memoryview:
        """Return the payload of a push.

        Args:
            start: first byte of the chunk, as counted by the layout.
            stop: the byte after its last one.

        Raises:
            RuntimeError: the GPU has failed.
        """
        if self.copy is not None:
            self.copy.wait(self.encoding.elements(stop))
        begin, end = self.encoding.where(start, stop)
        payload = self.contribution_bytes[begin:end]
        self.encoding.encode(start, stop, payload)
        return payload

    def destination(self, start: int, stop: int) -> memoryview | None:
        """Return the memory for a chunk's result, or None if its size is unknown before it arrives."""
        dtype = self.collective.dtype
        if dtype.format.may_shrink:
            return None
        return self.result_bytes[dtype.format.result_bytes(start) : dtype.format.result_bytes(stop)]

    def store(self, start: int, stop: int, payload: memoryview) -> None:
        """Put a chunk's result into the result memory, unless it was received there.

        Raises:
            MalformedFrame: no correct reducer sends this.
        """
        if payload.obj is not self.result_bytes.obj:
            self.encoding.store(start, stop, payload, np.frombuffer(self.result_bytes, np.uint8))

    def write(self) -> None:
        """Write the result into the tensor."""
        assert self.result is not None
        with torch.inference_mode(self.tensor.is_inference()):
            self.encoding.decode(self.result)
