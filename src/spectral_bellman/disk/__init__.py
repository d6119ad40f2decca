"""Files of a run: its folder, its checkpoints, its log and the provenance of its results."""
