"""What guests are served on a wire: addresses, router advertisements, boot files, metadata. Shared by every service
that has guests; it knows them through small protocols, never through a service."""
