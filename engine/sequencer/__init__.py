"""Sequencing: letters in, one step decided and journaled, answers out, tables projected and kept in order."""
