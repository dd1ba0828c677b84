"""Capturing a run: annotations, SM-activity samplers, sessions."""
