"""Numbered, gapless changes of the stored format."""
