"""State-space machinery: the scans of Mamba-1, Mamba-2, S4D and 2DMamba, each beside its definition."""
