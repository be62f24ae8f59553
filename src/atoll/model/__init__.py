"""What Atoll talks about: frozen values that check themselves. No input or output."""
