"""Process group, parallel nets, gradients, random streams, the main rank, signals and watchdog."""
