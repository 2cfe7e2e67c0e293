"""Arithmetic word problems that loopscope writes itself, from a seed."""
