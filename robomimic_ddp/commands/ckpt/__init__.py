"""`robomimic-ddp ckpt`: shows a checkpoint, writes it in another layout, or exports its policy."""
