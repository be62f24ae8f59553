"""Pure decisions: what is wanted and what is seen go in, what to do comes out."""
