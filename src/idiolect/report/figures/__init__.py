"""Figures of a study, drawn with matplotlib: for the page, and as files for a paper."""
