"""The fixers, by theme: a table FIXERS a file, or one FIXER, which then has the file's name.

`registry` finds them.
"""
