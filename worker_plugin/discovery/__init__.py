"""Finding the job's name and its reducers, before the first stream is opened. May block; own thread."""
