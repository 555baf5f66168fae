"""From bags and a split to a run: one readable loop, one folder per fit, models x splits through an executor."""
