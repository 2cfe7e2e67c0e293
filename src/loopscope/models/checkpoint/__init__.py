"""Checkpoints: folders and hub repositories, safetensors files, and how their tensors get into a model."""
