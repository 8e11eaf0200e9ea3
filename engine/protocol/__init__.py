"""The pure core: decide and evolve, without I/O, clock or chance."""
