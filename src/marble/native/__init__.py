"""Kernels in C++ for the inner loops that torch can only do in many passes: optional, and equal to the torch paths."""
