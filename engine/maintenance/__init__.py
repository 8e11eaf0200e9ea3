"""Keep the tables small and quick: checkpoints, merges of files, removal of what is not needed any more."""
