"""Stand-alone programs for the target interpreter. patchkit runs them and never imports them.

Each takes one JSON object as its argument and prints one JSON object between markers on the
standard output it was started with; what the library prints goes to standard error.
"""
