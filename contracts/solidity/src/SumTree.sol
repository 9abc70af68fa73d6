// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

/// @title Merkle trees whose nodes carry sums: no claim can exceed what the root adds up to (I6).
/// @notice Leaves are sorted strictly by key; a level with an odd node carries the last one up
/// unchanged; the empty tree is 32 zero bytes with sums of zero. Twin of `contracts/terms/merkle.py`.
/// A path is `sides` (bit i set: the i-th sibling stands on the left) and packed siblings, hash then
/// sum(s), from the leaf up: 44 bytes a level with one sum, 56 with two, 32 without.
/// @dev First bytes 0x00 to 0x06 separate leaves and nodes of the different trees.
library SumTree {
    /// @dev The path is not a whole number of siblings.
    error MalformedPath(uint256 length);
    /// @dev The amounts along the path do not fit 96 bits, so some node's sum was cut.
    error SumOverflow();

    uint256 private constant SIBLING = 44;
    uint256 private constant PAY_SIBLING = 56;

    function settlementLeaf(address account, bytes32 jobsRoot, uint96 cumulative) internal pure returns (bytes32) {
        return keccak256(abi.encodePacked(bytes1(0x00), account, jobsRoot, cumulative));
    }

    function jobsLeaf(bytes32 job, uint96 cumulative) internal pure returns (bytes32) {
        return keccak256(abi.encodePacked(bytes1(0x04), job, cumulative));
    }

    function payLeaf(address account, uint96 earned, uint96 vested) internal pure returns (bytes32) {
        return keccak256(abi.encodePacked(bytes1(0x02), account, earned, vested));
    }

    function batchLeaf(bytes32 job, uint64 step, bytes32 seal) internal pure returns (bytes32) {
        return keccak256(abi.encodePacked(bytes1(0x05), job, step, seal));
    }

    /// @notice Root and sum that a leaf and its path lead to, in the settlement or a jobs tree.
    /// @dev The only assembly of the project; `foldReference` is what it must equal (differential
    /// fuzz). Sums grow along a path, so a cut below shows in the total: one check at the end is enough.
    function fold(bytes32 node, uint256 sum, uint256 sides, bytes calldata path)
        internal
        pure
        returns (bytes32, uint96)
    {
        if (path.length % SIBLING != 0) revert MalformedPath(path.length);
        assembly ("memory-safe") {
            let buffer := mload(0x40) // scratch beyond the free pointer: 0x01 | hL | sL | hR | sR
            mstore8(buffer, 0x01)
            let end := add(path.offset, path.length)
            for { let at := path.offset } lt(at, end) { at := add(at, 44) } {
                let shift := mul(44, and(sides, 1)) // this node's place; the sibling has the other one
                mstore(add(add(buffer, 1), shift), node)
                mstore(add(add(buffer, 33), shift), shl(160, sum)) // spills right, before right is written
                calldatacopy(sub(add(buffer, 45), shift), at, 44)
                node := keccak256(buffer, 89)
                sum := add(sum, shr(160, calldataload(add(at, 32))))
                sides := shr(1, sides)
            }
        }
        if (sum > type(uint96).max) revert SumOverflow();
        return (node, uint96(sum));
    }

    /// @notice `fold` in plain Solidity, to be read and compared, not to be paid for.
    function foldReference(bytes32 node, uint96 sum, uint256 sides, bytes calldata path)
        internal
        pure
        returns (bytes32, uint96)
    {
        if (path.length % SIBLING != 0) revert MalformedPath(path.length);
        for (; path.length > 0; path = path[SIBLING:]) {
            bytes32 sibling = bytes32(path[:32]);
            uint96 siblingSum = uint96(bytes12(path[32:SIBLING]));
            if (siblingSum > type(uint96).max - sum) revert SumOverflow();
            node = sides & 1 == 0
                ? keccak256(abi.encodePacked(bytes1(0x01), node, sum, sibling, siblingSum))
                : keccak256(abi.encodePacked(bytes1(0x01), sibling, siblingSum, node, sum));
            sum += siblingSum;
            sides >>= 1;
        }
        return (node, sum);
    }

    /// @notice Root and both sums that a leaf and its path lead to in a pay tree.
    function foldPay(bytes32 node, uint96 earned, uint96 vested, uint256 sides, bytes calldata path)
        internal
        pure
        returns (bytes32, uint96, uint96)
    {
        if (path.length % PAY_SIBLING != 0) revert MalformedPath(path.length);
        for (; path.length > 0; path = path[PAY_SIBLING:]) {
            bytes32 sibling = bytes32(path[:32]);
            uint96 otherEarned = uint96(bytes12(path[32:44]));
            uint96 otherVested = uint96(bytes12(path[44:PAY_SIBLING]));
            if (otherEarned > type(uint96).max - earned || otherVested > type(uint96).max - vested) {
                revert SumOverflow();
            }
            node = sides & 1 == 0
                ? keccak256(abi.encodePacked(bytes1(0x03), node, earned, vested, sibling, otherEarned, otherVested))
                : keccak256(abi.encodePacked(bytes1(0x03), sibling, otherEarned, otherVested, node, earned, vested));
            earned += otherEarned;
            vested += otherVested;
            sides >>= 1;
        }
        return (node, earned, vested);
    }

    /// @notice Root that a batch leaf and its path lead to (no sums).
    function foldBatch(bytes32 node, uint256 sides, bytes calldata path) internal pure returns (bytes32) {
        if (path.length % 32 != 0) revert MalformedPath(path.length);
        for (; path.length > 0; path = path[32:]) {
            bytes32 sibling = bytes32(path[:32]);
            node = sides & 1 == 0
                ? keccak256(abi.encodePacked(bytes1(0x06), node, sibling))
                : keccak256(abi.encodePacked(bytes1(0x06), sibling, node));
            sides >>= 1;
        }
        return node;
    }
}
