"""The paper's tables, one file each: a pure function from records to typed rows."""
