"""The paper's published numbers as data: every table, and the results that only its text gives."""
