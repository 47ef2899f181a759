"""Find reducers from a string that has their addresses or names the platform that knows them."""
