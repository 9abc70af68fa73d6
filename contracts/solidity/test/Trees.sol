// SPDX-License-Identifier: Apache-2.0
pragma solidity =0.8.37;

import {SumTree} from "../src/SumTree.sol";

/// @dev Builds whole trees in memory, node by node as `SumTree` describes them, and finds paths.
library Trees {
    struct Payout {
        address account;
        bytes32 jobsRoot;
        uint96 cumulative;
    }

    struct Pay {
        address account;
        uint96 earned;
        uint96 vested;
    }

    struct Node {
        bytes32 hash;
        uint96 sum;
        uint96 vested; // second sum of pay trees; zero elsewhere
    }

    function settlementRoot(Payout[] memory payouts) internal pure returns (bytes32, uint96) {
        Node memory top = root(_settlementLeaves(payouts), false);
        return (top.hash, top.sum);
    }

    function settlementPath(Payout[] memory payouts, uint256 index) internal pure returns (uint256, bytes memory) {
        return path(_settlementLeaves(payouts), index, false);
    }

    function payRoot(Pay[] memory pays) internal pure returns (bytes32, uint96, uint96) {
        Node memory top = root(_payLeaves(pays), true);
        return (top.hash, top.sum, top.vested);
    }

    function payPath(Pay[] memory pays, uint256 index) internal pure returns (uint256, bytes memory) {
        return path(_payLeaves(pays), index, true);
    }

    function root(Node[] memory level, bool twoSums) internal pure returns (Node memory) {
        if (level.length == 0) return Node(0, 0, 0);
        while (level.length > 1) {
            level = _above(level, twoSums);
        }
        return level[0];
    }

    function path(Node[] memory level, uint256 index, bool twoSums)
        internal
        pure
        returns (uint256 sides, bytes memory siblings)
    {
        for (uint256 depth = 0; level.length > 1; index /= 2) {
            uint256 other = index ^ 1;
            if (other < level.length) {
                Node memory node = level[other];
                siblings = twoSums
                    ? abi.encodePacked(siblings, node.hash, node.sum, node.vested)
                    : abi.encodePacked(siblings, node.hash, node.sum);
                if (other < index) sides |= 1 << depth;
                ++depth;
            }
            level = _above(level, twoSums);
        }
    }

    function _above(Node[] memory level, bool twoSums) private pure returns (Node[] memory parents) {
        parents = new Node[]((level.length + 1) / 2);
        for (uint256 i = 0; i + 1 < level.length; i += 2) {
            parents[i / 2] = twoSums ? _payNode(level[i], level[i + 1]) : _sumNode(level[i], level[i + 1]);
        }
        if (level.length % 2 == 1) parents[parents.length - 1] = level[level.length - 1];
    }

    function _sumNode(Node memory l, Node memory r) private pure returns (Node memory) {
        return Node(keccak256(abi.encodePacked(bytes1(0x01), l.hash, l.sum, r.hash, r.sum)), l.sum + r.sum, 0);
    }

    function _payNode(Node memory l, Node memory r) private pure returns (Node memory) {
        bytes memory both = abi.encodePacked(bytes1(0x03), l.hash, l.sum, l.vested, r.hash, r.sum, r.vested);
        return Node(keccak256(both), l.sum + r.sum, l.vested + r.vested);
    }

    function _settlementLeaves(Payout[] memory payouts) private pure returns (Node[] memory leaves) {
        leaves = new Node[](payouts.length);
        for (uint256 i = 0; i < payouts.length; ++i) {
            Payout memory each = payouts[i];
            leaves[i] =
                Node(SumTree.settlementLeaf(each.account, each.jobsRoot, each.cumulative), each.cumulative, 0);
        }
    }

    function _payLeaves(Pay[] memory pays) private pure returns (Node[] memory leaves) {
        leaves = new Node[](pays.length);
        for (uint256 i = 0; i < pays.length; ++i) {
            Pay memory each = pays[i];
            leaves[i] = Node(SumTree.payLeaf(each.account, each.earned, each.vested), each.earned, each.vested);
        }
    }
}
