"""The door of a service: who may open how many connections, for how long, and what of it is logged."""
