"""The subcommands of `robomimic-ddp`, a module or a folder each; patches/ edits hosts."""
