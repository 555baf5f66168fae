"""The waist of the house: a bag is all that the image side and the learning side share."""

from marble.bags.bag import Bag, Level
from marble.bags.provenance import EncoderIdentity, Geometry, Provenance, SlideIdentity
from marble.bags.store import BagStore

__all__ = ["Bag", "BagStore", "EncoderIdentity", "Geometry", "Level", "Provenance", "SlideIdentity"]
