"""What all parsers of guests' bytes raise."""


class BadPacket(ValueError):
    """The bytes are not what they claim to be."""
