"""Assignors: which member of a group gets which partition, one module per assignor. Pure and deterministic."""
