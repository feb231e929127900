"""What runs from a checkout. A package, so that no other one named `scripts` takes its place."""
