"""Python source: parsed, names resolved, imports added, and line numbers kept."""
