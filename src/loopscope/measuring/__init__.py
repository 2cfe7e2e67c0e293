"""One streaming pass over a model and its tasks: batches in, records out, resumable, on one machine or many."""
