"""The fixers, by theme: a file has a table FIXERS, or one FIXER with the file's name."""
