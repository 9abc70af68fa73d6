"""The provider agent: wallet, offer, leases, and one peer process per lease."""
