"""The publisher's own program: what its process runs. The standard library, and nothing else of ours."""
