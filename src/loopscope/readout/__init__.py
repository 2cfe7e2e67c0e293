"""φ and its derivatives along H + αD, from states or logits."""
