"""What a model's sizes and rates may be, as types of its options: checked where an experiment file is read."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

#: a width, or how many there are of something
Count: TypeAlias = Annotated[int, Field(ge=1)]
#: the same, where there may be none
CountFromZero: TypeAlias = Annotated[int, Field(ge=0)]
#: an amount of which there must be some
Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
#: the same, where there may be none
Amount: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: a share that is left out at random
Rate: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
