"""The jobs that come with the pipeline, one a file. Each is declared by the same decorator that users have."""
