"""The paper's figures, one file each, drawn with matplotlib without any global state."""
