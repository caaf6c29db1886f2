"""The pictures of the README and of docs/architecture.md."""
