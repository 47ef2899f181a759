"""`reducer run`: starts what a training needs beside itself, runs it, and ends with it."""
