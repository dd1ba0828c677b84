"""Figures and tables of papers, computed again: studies, raw tables, the papers' numbers, comparisons.

A study computes a raw table; a comparison puts it beside the paper's numbers; a notebook draws both.
"""
