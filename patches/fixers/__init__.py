"""One construct a file; the file's name is the fixer's name, and `registry` finds it by its
FIXER.
"""
