"""Documents of several short stories that loopscope writes itself, from a seed."""
