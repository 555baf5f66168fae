"""Slide to bag: one call per slide, resumable, with a record whatever happens.

spec        every choice that changes a bag, and the machine's settings, which do not
source      finding slide files and checking that they are what they were
regions     which pixels are read together
choosing    leaving out branches that are not worth embedding
pipeline    reading ahead and encoding side by side, in an order that never changes
extraction  the work on one slide
slide       one slide to one bag: what is done is skipped, and there is always a record
batch       many slides
plan        the cost beforehand
"""

from marble.extract.batch import BatchFacts, BatchProgress, SlideOutcome, Summary, extract_many
from marble.extract.choosing import Chooser
from marble.extract.extraction import Progress
from marble.extract.pipeline import LevelTokens, encode_level
from marble.extract.plan import Estimate, plan
from marble.extract.slide import extract_slide, store_for
from marble.extract.source import SlideFacts, find_slides, ids_of, read_manifest, slides_in
from marble.extract.spec import SLIDE_LIMITS, ExtractSpec, Machine, load_encoders

__all__ = [
    "SLIDE_LIMITS",
    "BatchFacts",
    "BatchProgress",
    "Chooser",
    "Estimate",
    "ExtractSpec",
    "LevelTokens",
    "Machine",
    "Progress",
    "SlideFacts",
    "SlideOutcome",
    "Summary",
    "encode_level",
    "extract_many",
    "extract_slide",
    "find_slides",
    "ids_of",
    "load_encoders",
    "plan",
    "read_manifest",
    "slides_in",
    "store_for",
]
