"""What a string says of the reducers: addresses, or the platform that knows them."""
