"""Delayed messages: publish, list, cancel and release them."""
