"""Sequencing: take letters, decide them in one step, put the step, answer, and write the tables."""
