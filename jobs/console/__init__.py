"""The web console: pages about a namespace, which show what the command shows. It holds no state."""
