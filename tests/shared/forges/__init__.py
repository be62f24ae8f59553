"""Forges: what hostile guests and callers send, by protocol. Pure: one seed gives the same inputs, in the same order.

Most of what they make is nearly right, so that it is looked into; the rest is damaged, cut short, or noise.
"""
