"""The behaviour behind the edited lines, by topic; `robomimic_ddp.api` holds their names."""
