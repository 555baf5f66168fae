"""File formats: each reader shows a file as a few planes of one picture."""
