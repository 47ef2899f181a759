"""What a text says of the reducers: addresses, or the platform that knows them."""
