"""Overlap of work in a training iteration: wrap, record, find dependencies, transform, run (Rose)."""
