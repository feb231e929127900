"""`robomimic-ddp doctor`: what on this machine would keep a job from running, before it runs."""
