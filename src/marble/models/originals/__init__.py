"""The authors' own weights, loaded into our models."""
