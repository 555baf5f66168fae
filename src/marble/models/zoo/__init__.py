"""Every model, one file per paper."""
