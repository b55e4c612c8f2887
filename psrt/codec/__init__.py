"""Vectors in fewer bytes, and back: casts, quantization, signs, sparse vectors, error feedback."""

from psrt.codec.codec import Codec
from psrt.codec.feedback import ErrorFeedback
from psrt.codec.registry import CODECS, make_codec

__all__ = ["CODECS", "Codec", "ErrorFeedback", "make_codec"]
