"""Each table and figure of the paper as a pure function of stored records."""
