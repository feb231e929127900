"""A stand-in for the hosts' configs."""

from __future__ import annotations


class Section(dict):
    """A dict whose entries are attributes."""

    __getattr__ = dict.__getitem__
