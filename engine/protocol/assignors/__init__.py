"""Who of a group gets which partition: a module per assignor. Pure and deterministic."""
