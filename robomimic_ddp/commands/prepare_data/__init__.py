"""`robomimic-ddp prepare-data SRC DEST`: writes a smaller RLDS dataset, at the delivered size."""
