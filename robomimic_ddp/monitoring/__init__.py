"""What a run shows of itself: step hooks, metrics, progress, heartbeat, history."""
