"""Frozen networks that turn tiles into tokens."""

from marble.encoders.availability import availability
from marble.encoders.catalogue import CATALOGUE, EncoderRow, encoder_row
from marble.encoders.encoder import Encoder
from marble.encoders.loading import load_encoder

__all__ = ["CATALOGUE", "Encoder", "EncoderRow", "availability", "encoder_row", "load_encoder"]
