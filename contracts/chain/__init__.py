"""The only web3 code: connection, a wrapper per contract, events; without it proofs, blocks."""
