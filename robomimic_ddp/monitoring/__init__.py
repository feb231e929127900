"""Step hooks, metrics, progress bar, heartbeat, history."""
