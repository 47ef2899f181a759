"""The page of `reducer serve --page`, which shows the view of `reducer top` in browsers."""
