"""HTTP for guests: connections that no guest can hold more of than its share."""
