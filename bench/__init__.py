"""Measurements of the product that are not part of it."""
