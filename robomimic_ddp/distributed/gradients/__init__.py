"""Nets on several ranks, and how their gradients are averaged."""
