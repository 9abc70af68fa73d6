// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

/// @title The Merkle tree whose root a seal signs: what each account earned in a job, and what of it vested.
/// @notice A leaf is 40 bytes: account, earned, vested (uint80 each). Leaves stand in ascending order of
/// the account; a level with an odd node carries its last one up unchanged. Byte 0x08 begins a leaf's
/// preimage and 0x06 a node's, so that one is never the other. Twin of `contracts/terms/merkle.py`.
library PayTree {
    /// @dev Not a whole number of leaves, or none.
    error MalformedLeaves(uint256 length);

    uint256 internal constant LEAF = 40;

    /// @notice Hash of one leaf.
    function leaf(address account, uint80 earned, uint80 vested) internal pure returns (bytes32) {
        return keccak256(abi.encodePacked(bytes1(0x08), account, earned, vested));
    }

    /// @notice The leaf at byte `offset` of packed leaves.
    function read(bytes calldata leaves, uint256 offset)
        internal
        pure
        returns (address account, uint80 earned, uint80 vested)
    {
        assembly ("memory-safe") {
            let word := calldataload(add(leaves.offset, offset))
            account := shr(96, word)
            earned := and(shr(16, word), 0xffffffffffffffffffff)
            vested := shr(176, calldataload(add(leaves.offset, add(offset, 30))))
        }
    }

    /// @notice Hash of the node above packed leaves, which are a whole subtree.
    function subtree(bytes calldata leaves) internal pure returns (bytes32 node) {
        if (leaves.length == 0 || leaves.length % LEAF != 0) revert MalformedLeaves(leaves.length);
        assembly ("memory-safe") {
            // Nodes stand in a row beyond the free pointer, which is left where it is. Each level is
            // written over the one below.
            let nodes := mload(0x40)
            let last := nodes
            mstore(0, 0x08)
            for { let from := leaves.offset } lt(from, add(leaves.offset, leaves.length)) { from := add(from, 40) } {
                calldatacopy(0x20, from, 40) // 0x1f: the prefix; 0x20..0x48 ends in the free pointer's high bytes
                mstore(last, keccak256(0x1f, 41))
                last := add(last, 0x20)
            }
            mstore8(0x1f, 0x06)
            for {} gt(sub(last, nodes), 0x20) {} {
                let to := nodes
                for { let from := nodes } lt(from, last) { from := add(from, 0x40) } {
                    switch eq(add(from, 0x20), last)
                    case 1 { mstore(to, mload(from)) }
                    default {
                        mstore(0x20, mload(from))
                        mstore(0x40, mload(add(from, 0x20)))
                        mstore(to, keccak256(0x1f, 0x41))
                    }
                    to := add(to, 0x20)
                }
                last := to
            }
            node := mload(nodes)
            mstore(0x40, nodes)
        }
    }

    /// @notice The root that a node and its path lead to.
    function fold(bytes32 node, uint256 sides, bytes32[] calldata path) internal pure returns (bytes32) {
        assembly ("memory-safe") {
            let free := mload(0x40)
            mstore(0, 0x06) // byte 0x1f; then the left node, then the right one
            let last := add(path.offset, shl(5, path.length))
            for { let from := path.offset } lt(from, last) { from := add(from, 0x20) } {
                let shift := shl(5, and(sides, 1)) // this node's place; the sibling has the other one
                mstore(add(0x20, shift), node)
                mstore(sub(0x40, shift), calldataload(from))
                node := keccak256(0x1f, 0x41)
                sides := shr(1, sides)
            }
            mstore(0x40, free)
        }
        return node;
    }
}
