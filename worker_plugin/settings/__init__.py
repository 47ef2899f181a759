"""What users may set, and how: kinds of settings, their table, variables, forms of addresses."""
