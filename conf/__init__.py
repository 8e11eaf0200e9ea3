"""Defaults shipped as package data."""
