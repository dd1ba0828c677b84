"""Captures as tidy tables: one reader per format, one clock per trace."""
