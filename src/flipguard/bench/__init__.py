"""Every method under the same conditions: a table's networks, trained once and shared, and what they come to."""
