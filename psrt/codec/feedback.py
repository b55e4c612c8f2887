"""Error feedback: the error of encoding one vector is added to the next vector."""

from __future__ import annotations

import numpy as np

from psrt.codec.codec import Codec, Encoder
from psrt.core.arrays import Bytes, Vector


class ErrorFeedback:
    """The sending side of a codec: p = v + e is sent as C(p), and e becomes p − C(p).

    Source: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al.,
    ICML 2019, arXiv:1901.09847, for its convergence with any δ-compressor.

    >>> from psrt.codec.sparse import TopK
    >>> sender = ErrorFeedback(TopK(2, density=0.5))
    >>> for _ in range(2):
    ...     _ = sender.encode(np.array([3, 2], np.float32), None)
    ...     sender.residual.tolist()
    [0.0, 2.0]
    [3.0, 0.0]
    """

    saved = ("codec", "residual")
    by_element = kept_back = ("residual",)

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.n, self.most = codec.n, codec.most
        #: (n,) float32, e: what frames have left out so far.
        self.residual: Vector = np.zeros(codec.n, np.float32)
        #: (n,) float32, C(p) of the last frame.
        self.decoded: Vector = np.zeros(codec.n, np.float32)

    @property
    def nbytes(self) -> int | None:
        """Bytes of every frame; None where they depend on the numbers."""
        return self.codec.nbytes

    @property
    def longest(self) -> int:
        """Bytes of the longest frame of this epoch."""
        return self.codec.longest

    def begin_epoch(self, epoch: int) -> None:
        """Note that an epoch of training begins, counted from 0."""
        self.codec.begin_epoch(epoch)

    def rescale(self, factor: float) -> None:
        """Multiply the residual, since vectors from now on are scaled by ``factor``."""
        np.multiply(self.residual, np.float32(factor), out=self.residual)

    def decode(self, frame: Bytes, out: Vector) -> None:
        """Write the vector of a frame of this codec to ``out``; see ``Codec.decode``."""
        self.codec.decode(frame, out)

    def encode(self, vector: Vector, rng: np.random.Generator) -> Bytes:
        """Return the frame of a vector plus the residual: a view, valid until the next call."""
        residual, decoded = self.residual, self.decoded
        # In place: residual is first p, then p − C(p). C(p) comes from decoding the very frame that
        # is sent, so the residual is exact whatever the codec did, rounding included.
        np.add(vector, residual, out=residual)
        frame = self.codec.encode(residual, rng)
        self.codec.decode(frame, decoded)
        np.subtract(residual, decoded, out=residual)
        return frame


def codec_of(sender: Encoder) -> Codec:
    """Return the codec of a sending side, inside its error feedback if there is one."""
    codec = sender.codec if isinstance(sender, ErrorFeedback) else sender
    assert isinstance(codec, Codec), "there are no other senders"
    return codec
