"""Pieces that several models are made of."""
