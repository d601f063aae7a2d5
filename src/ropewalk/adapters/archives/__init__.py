"""Cold history: reads the archive that the pipeline writes."""
