"""One construct a file, whose FIXER has the file's name; in `decorators` a table, FIXERS.

`registry` finds them.
"""
