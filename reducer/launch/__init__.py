"""`reducer run`: start the reducers that a training needs, run the training, and end with it."""
