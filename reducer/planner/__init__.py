"""Predict the gain of reducers from the rates of links, before renting any machines."""
