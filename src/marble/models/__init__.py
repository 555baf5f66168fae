"""One door to every model: `build(name, dim, outputs, **options)`."""

from marble.models.base import BagModel, Output, Side
from marble.models.originals.weights import load_reference
from marble.models.recipe import COMMON, SMALL_BELOW, Recipe, small
from marble.models.registry import MODELS, build, check_option, list_models, model_class, model_options

__all__ = [
    "COMMON",
    "MODELS",
    "SMALL_BELOW",
    "BagModel",
    "Output",
    "Recipe",
    "Side",
    "build",
    "check_option",
    "list_models",
    "load_reference",
    "model_class",
    "model_options",
    "small",
]
