"""Prices and their time lines, and the cost of incidents and runs."""
