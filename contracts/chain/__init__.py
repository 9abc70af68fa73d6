"""The chain: connection and contract wrappers (the only web3 code); blocks, proofs without it."""
