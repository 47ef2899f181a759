"""What users may write: types of arguments, variables of the environment, forms of addresses."""
