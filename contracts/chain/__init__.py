"""The only web3 code: connection, one wrapper per contract, events; proofs without web3."""
