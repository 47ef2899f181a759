"""The page of `reducer serve --page`: what `reducer top` shows, for browsers."""
