"""A reducer as others reach it, over both planes: what ranks dial, and `reducer doctor`."""
