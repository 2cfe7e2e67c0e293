"""Tables as text, Markdown, LaTeX, CSV and JSON; no number is computed here."""
