"""RPEG (arXiv 2611.09207): studies of its figures and tables."""
