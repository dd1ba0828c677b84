"""Reports for people: one HTML file that opens from disk."""
