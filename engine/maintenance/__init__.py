"""What keeps the tables small and quick: checkpoints, merged files, the removal of what is no longer needed."""
