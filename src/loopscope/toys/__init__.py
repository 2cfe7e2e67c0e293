"""Training of the embedded looped models; light to import, because the data workers import it too."""
