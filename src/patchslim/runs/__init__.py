"""Run folders from the first command to the last: making one, recovering one, going on with either."""
