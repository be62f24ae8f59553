"""Router advertisements: what tells a guest its IPv6 network, its gateway, and how to get its address."""
