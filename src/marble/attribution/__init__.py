"""Why a model says what it says: one number per tile, at every level.

lifting        attention, and at coarser levels the highest of it below each tile
scores         the number a map is about: a class's logit, or the risk
occlusion      how the score changes when a coarse tile goes with all below it
gradient       gradient times input, which tells classes apart
faithfulness   deletion and insertion curves: how far a map can be believed
maps           any of these as maps of tiles on the slide
"""

from marble.attribution.faithfulness import Curves, deletion_insertion
from marble.attribution.gradient import gradient_times_input
from marble.attribution.lifting import attention_by_level, lift
from marble.attribution.maps import MODES, Explanation, explain
from marble.attribution.occlusion import branch_occlusion
from marble.attribution.scores import Score, score_of

__all__ = [
    "MODES",
    "Curves",
    "Explanation",
    "Score",
    "attention_by_level",
    "branch_occlusion",
    "deletion_insertion",
    "explain",
    "gradient_times_input",
    "lift",
    "score_of",
]
