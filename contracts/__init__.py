"""What parties sign and what the chain enforces: the lowest floor, in both senses of the word."""
