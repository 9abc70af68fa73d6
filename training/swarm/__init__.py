"""Policy of a swarm: who is a member, how a step goes, what is owed to whom. Pure."""
