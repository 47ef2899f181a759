"""What reducers would gain: predicted from the rates of links, before any of them is rented."""
